"""The verdict: one value with its exit code and reason, for all sizes, cards and doubts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimates.test_result import make
from vramcast.cluster.request import Request
from vramcast.estimates import verdict
from vramcast.estimates.growth import Growth
from vramcast.estimates.result import Estimate
from vramcast.tracer.format.trace import Trace

MIB = 1024**2


def sized(total_bytes: int, **changes: Any) -> Estimate:
    """Return an estimate on a card of another size."""
    job, has_card = make().job, changes.pop("has_card", True)
    return make(job=type(job)(job.device, target=job.target, memory_bytes=total_bytes, has_card=has_card), **changes)


@given(st.integers(min_value=1, max_value=4 << 30))
def test_compares_card_with_point_and_bound(total_bytes: int) -> None:
    estimate = sized(total_bytes)
    expected = (
        "fits" if estimate.upper_bound <= total_bytes else "uncertain" if estimate.process <= total_bytes else "does not fit"
    )
    assert estimate.verdict.value == expected
    assert estimate.fits() is (expected == "fits")


@given(st.integers(min_value=1, max_value=4 << 30))
def test_trial_workspaces_are_not_needed(total_bytes: int) -> None:
    searching, rest = sized(total_bytes, **peak(800)), sized(total_bytes, **peak(300))
    found = replace(searching, without_searches=rest.process)
    assert found.need().point_bytes == rest.process
    assert found.need().bound_bytes == searching.need().bound_bytes  # the search may choose any plan that it tries
    assert found.need("t4").point_bytes == rest.need("t4").point_bytes
    assert (found.verdict.value == "does not fit") is (rest.process > total_bytes)
    assert (found.verdict.value == "fits") is (searching.verdict.value == "fits")


def peak(reserved_mib: int) -> dict[str, int]:
    """Return changes to an estimate that reserves so much."""
    return {"reserved": reserved_mib * MIB, "process": reserved_mib * MIB + make().context.bytes}


def test_trial_workspaces_raise_no_need() -> None:
    assert replace(make(), without_searches=make().process + MIB).need() == make().need()


@pytest.mark.parametrize(("value", "code"), [("fits", 0), ("does not fit", 1), ("uncertain", 4)])
def test_each_verdict_has_an_exit_code(value: Any, code: int) -> None:
    said = verdict.Verdict(value, "so")
    assert (said.exit_code, str(said)) == (code, f"{value}: so")
    assert said.to_dict() == {"value": value, "exit_code": code, "reason": "so"}


# ------------------------------------------------------------------------------------------------ doubts
def with_course(**said: Any) -> dict[str, Trace]:
    """Return changes to an estimate, with a trace of a command that went as `said`."""
    trace = make().trace
    course = {"phases": [[0, "build"]], "counts": {}, "not_reached": [], "ended": "", **said}
    return {"trace": replace(trace, header={**trace.header, "course": course})}


def growth(phase: str = "training", *, full_at_step: int = 500, steps_known: int | None = None, **changes: Any) -> Growth:
    """Return the growth of a loop that fills the card of `make()` in a step."""
    card_bytes = make().card_bytes
    return Growth(MIB, phase, "train.py:7", full_at_step, steps_known, steps_seen=64, card_bytes=card_bytes, **changes)


DOUBTFUL: list[tuple[dict[str, Any], str]] = [
    ({"unbounded_calls": ("bincount",)}, "no largest size is known for bincount"),
    (with_course(ended="ValueError: no data"), "the command ended early (ValueError: no data)"),
    (with_course(not_reached=["evaluation"]), "not observed: evaluation"),
    ({"growth": growth()}, "train.py:7: the card is full in step 500"),
    ({"growth": growth(steps_known=400)}, "in step 500, but the loop ends after 400"),
    (
        {"growth": growth(steps_known=600, is_judged=False)},
        "only 64 steps were observed, too few to tell whether the growth stops",
    ),
]


@pytest.mark.parametrize(("changes", "reason"), DOUBTFUL)
def test_doubts_make_verdict_uncertain(changes: dict[str, Any], reason: str) -> None:
    estimate = make(**changes)
    assert (estimate.verdict.value, estimate.verdict.exit_code) == ("uncertain", 4)
    assert reason in estimate.verdict.reason
    assert len(estimate.doubts) == 1
    assert not any(estimate.to_dict()["fits"].values())
    assert Request.of(estimate).size_bytes == estimate.card_bytes  # a scheduler gives it the whole card


@pytest.mark.parametrize(("changes", "reason"), DOUBTFUL)
def test_observed_part_may_exceed_card(changes: dict[str, Any], reason: str) -> None:
    assert sized(MIB, **changes).verdict.value == "does not fit"


def test_growing_loop_does_not_fit() -> None:
    estimate = make(growth=growth(steps_known=501))
    assert (estimate.verdict.value, estimate.verdict.exit_code) == ("does not fit", 1)
    assert "the card is full in step 500 of 501" in estimate.verdict.reason
    larger = estimate.job.device.with_memory(estimate.card_bytes + 2 * MIB)
    assert estimate.verdict_on(larger).value == "uncertain"


def test_bound_covers_known_evaluation() -> None:
    settled = make()
    keeps = growth("evaluation", full_at_step=10**6, steps_known=100, reserved_at_end=settled.reserved + 100 * MIB)
    estimate = make(growth=keeps)
    assert estimate.process == settled.process
    assert estimate.upper_bound >= settled.process + 100 * MIB
    assert (estimate.verdict.value, estimate.doubts) == ("fits", ())
    assert sum(part.size_bytes for part in estimate.margin()) == estimate.upper_bound - estimate.process
    assert sized(settled.upper_bound + 50 * MIB, growth=keeps).verdict.value == "uncertain"
