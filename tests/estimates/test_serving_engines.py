"""The accounts of a serving engine: read from a trace, in the verdict, the JSON and the text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.estimates.test_result import make
from vramcast.core.errors import TraceFileError
from vramcast.core.units import GIB
from vramcast.estimates.result import Estimate
from vramcast.tracer.format.serving import Serving, serving_of
from vramcast.tracer.format.trace import COURSE, SERVING, Trace

SAID = {
    "engine": "vllm", "version": "0.22.1", "weights_bytes": 15 * GIB, "activation_bytes": 2 * GIB, "graphs_bytes": GIB // 2,
    "non_torch_bytes": 0, "kv_cache_bytes": 8 * GIB, "kv_cache_tokens": 65536, "max_concurrency": 8.0,
    "outside_less_bytes": GIB // 8, "outside_more_bytes": GIB, "starts": True,
}  # fmt: skip


def served(card_gib: float = 16, **changes: Any) -> Estimate:
    """Return an estimate of an engine with these accounts; its process takes some MiB."""
    estimate = make()
    header = {**estimate.trace.header, SERVING: {**SAID, **changes}}
    header[COURSE] = {"phases": [[0, "build"]], "counts": {"build": 0}, "not_reached": ["evaluation"], "ended": "it raised"}
    job = replace(estimate.job, memory_bytes=int(card_gib * GIB))
    return replace(estimate, job=job, trace=replace(estimate.trace, header=header))


def test_job_without_engine_has_no_accounts() -> None:
    assert serving_of(make().trace) is None
    assert make().to_dict()["serving"] is None


def test_unknown_account_is_none() -> None:
    found = served()
    assert found.serving == Serving(**SAID)  # type: ignore[arg-type]
    assert found.to_dict()["serving"] == {**SAID, "max_context": None, "missing_bytes": None, "reason": ""}


@pytest.mark.parametrize(
    ("changes", "value", "reason"),
    [
        ({}, "fits", "KV cache 8.00 GiB: 65,536 tokens, 8.00 requests of the longest length (vllm 0.22.1)"),
        ({"starts": False, "reason": "No available memory for the cache blocks."}, "does not fit", "No available memory"),
        ({"starts": False, "missing_bytes": GIB // 4}, "does not fit", "does not start: "),
        ({"starts": False, "missing_bytes": GIB // 16}, "uncertain", "does not start, but may take 128.0 MiB less"),
        ({"max_concurrency": 1.1}, "uncertain", "vllm starts with 744.7 MiB of its KV cache"),
        ({"card_gib": 1.0}, "uncertain", "may take 1.00 GiB more"),
        ({"card_gib": 0.001}, "does not fit", "the job needs"),
    ],
)
def test_engine_check_is_the_verdict(changes: dict[str, Any], value: str, reason: str) -> None:
    estimate = served(**changes)
    assert estimate.verdict.value == value
    assert reason in estimate.verdict.reason
    assert not estimate.doubts  # neither for a training step, nor for an early end
    assert str(estimate).startswith(value)


def test_engine_of_an_older_trace_may_take_any_size_more() -> None:
    estimate = served()
    said = {name: value for name, value in SAID.items() if not name.startswith("outside")}
    estimate = replace(estimate, trace=replace(estimate.trace, header={**estimate.trace.header, SERVING: said}))
    assert estimate.verdict.value == "uncertain"
    assert "may take an unknown size more" in estimate.verdict.reason


def test_engine_divides_another_card_anew() -> None:
    estimate = served()
    assert estimate.verdict.value == "fits"
    assert estimate.verdict_on(estimate.job.device.with_memory(80 * GIB)).value == "uncertain"


def test_engine_without_check_leaves_doubts() -> None:
    header = {name: value for name, value in SAID.items() if name != "starts"}
    estimate = served()
    estimate = replace(estimate, trace=replace(estimate.trace, header={**estimate.trace.header, SERVING: header}))
    assert estimate.verdict.value == "uncertain"
    assert "it raised" in estimate.verdict.reason


def test_answer_is_in_terms_of_the_engine() -> None:
    text = str(served())
    assert "serves   KV cache 8.00 GiB: 65,536 tokens, 8.00 requests" in text
    assert "weights 15.00 GiB, peak activation 2.00 GiB, graphs 512.0 MiB, outside PyTorch 0.0 MiB\n" in text
    assert "bound" not in text
    assert "assumes  at most 1.00 GiB more outside PyTorch, as other starts logged" in text


@pytest.mark.parametrize("said", [{"starts": 1}, {"engine": 5}, {"weights_bytes": "8"}, {"weights_bytes": True}, [8], "vllm"])
def test_damaged_accounts_are_refused(said: Any) -> None:
    with pytest.raises(TraceFileError, match="accounts of an engine"):
        serving_of(Trace.build({"action": [], "size_bytes": [], "block": [], "address": []}, header={SERVING: said}))
