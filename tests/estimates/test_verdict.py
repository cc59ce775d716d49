"""The verdict: one value with its exit code and reason, whatever the sizes, the card and what is unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimates.test_result import make
from vramcast.estimates import verdict
from vramcast.estimates.result import Estimate
from vramcast.schedulers.request import Request
from vramcast.tracer.format.trace import Trace

MIB = 1024**2


def sized(total_bytes: int, **changes: Any) -> Estimate:
    """Return an estimate on a card of another size."""
    job = make().job
    return make(job=type(job)(job.device, target=job.target, memory_bytes=total_bytes), **changes)


@given(st.integers(min_value=1, max_value=4 << 30))
def test_the_card_decides_between_point_and_bound(total_bytes: int) -> None:
    estimate = sized(total_bytes)
    expected = (
        "fits" if estimate.upper_bound <= total_bytes else "uncertain" if estimate.process <= total_bytes else "does not fit"
    )
    assert estimate.verdict.value == expected
    assert estimate.fits() is (expected == "fits")


@pytest.mark.parametrize(("value", "code"), [("fits", 0), ("does not fit", 1), ("uncertain", 4)])
def test_each_value_has_its_exit_code(value: Any, code: int) -> None:
    said = verdict.Verdict(value, "so")
    assert (said.exit_code, str(said)) == (code, f"{value}: so")
    assert said.to_dict() == {"value": value, "exit_code": code, "reason": "so"}


# ------------------------------------------------------------------------------------------------ what is unknown
def with_course(**said: Any) -> dict[str, Trace]:
    """Return a trace whose command went as `said`."""
    trace = make().trace
    course = {"phases": [[0, "build"]], "counts": {}, "not_reached": [], "ended": "", **said}
    return {"trace": replace(trace, header={**trace.header, "course": course})}


DOUBTFUL: list[tuple[dict[str, Any], str]] = [
    ({"unbounded_calls": ("bincount",)}, "these calls have no largest shape: bincount"),
    (with_course(ended="ValueError: no data"), "the command ended early (ValueError: no data)"),
    (with_course(not_reached=["evaluation"]), "not seen: evaluation"),
]


@pytest.mark.parametrize(("changes", "reason"), DOUBTFUL)
def test_what_is_unknown_and_matters_is_never_said_to_fit(changes: dict[str, Any], reason: str) -> None:
    estimate = make(**changes)
    assert (estimate.verdict.value, estimate.verdict.exit_code) == ("uncertain", 4)
    assert reason in estimate.verdict.reason
    assert len(estimate.doubts) == 1
    assert not any(estimate.to_dict()["fits"].values())
    assert Request.of(estimate).size_bytes == estimate.card_bytes  # a scheduler gives it the whole card


@pytest.mark.parametrize(("changes", "reason"), DOUBTFUL)
def test_what_was_seen_may_be_too_much_already(changes: dict[str, Any], reason: str) -> None:
    assert sized(MIB, **changes).verdict.value == "does not fit"
