"""The accounts of a serving engine: read from a trace, in the verdict, the JSON and the text."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tests.estimates.test_result import make
from vramcast.core.errors import TraceFileError
from vramcast.core.units import GIB
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.tracer.format.serving import EngineAccounts, serving_of
from vramcast.tracer.format.trace import COURSE, RANKS, SERVING, Trace

SAID = {
    "engine": "vllm", "version": "0.22.1", "weights_bytes": 15 * GIB, "activation_bytes": 2 * GIB, "graphs_bytes": GIB // 2,
    "non_torch_bytes": 0, "kv_cache_bytes": 8 * GIB, "kv_cache_tokens": 65536, "max_concurrency": 8.0,
    "outside_less_bytes": GIB // 8, "outside_more_bytes": GIB, "starts": True,
}  # fmt: skip
ACCOUNTS = [field.name for field in fields(EngineAccounts)]
# Of an H100 of 80 GiB, 0.75 are 60 GiB: 60 - 15 - 2 - 3 (outside PyTorch and graphs) = 40 GiB for the KV cache.
DIVIDED = {
    "kv_cache_bytes": 40 * GIB, "kv_cache_tokens": 327_680, "max_concurrency": 40.0, "available_bytes": 40 * GIB,
    "request_bytes": GIB, "context_tokens": 8192, "max_context": 327_680, "utilization": 0.75, "tensor_parallel": 1,
    "pipeline_parallel": 1,
}  # fmt: skip


def served(card_gib: float = 16, **changes: Any) -> Estimate:
    """Return an estimate of an engine with these accounts; its process takes some MiB."""
    estimate = make()
    header = {**estimate.trace.header, SERVING: {**SAID, **changes}}
    header[COURSE] = {"phases": [[0, "build"]], "counts": {"build": 0}, "not_reached": ["evaluation"], "ended": "it raised"}
    job = replace(estimate.job, memory_bytes=int(card_gib * GIB))
    return replace(estimate, job=job, trace=replace(estimate.trace, header=header))


def without(beginning: str, estimate: Estimate) -> Estimate:
    """Return the estimate without the accounts with this beginning of their names."""
    accounts = {name: value for name, value in estimate.trace.header[SERVING].items() if not name.startswith(beginning)}
    return replace(estimate, trace=replace(estimate.trace, header={**estimate.trace.header, SERVING: accounts}))


def test_job_without_engine_has_no_accounts() -> None:
    assert serving_of(make().trace) is None
    assert make().to_dict()["serving"] is None


def test_unknown_account_is_none() -> None:
    found = served()
    assert found.serving == EngineAccounts(**SAID)  # type: ignore[arg-type]
    assert found.to_dict()["serving"] == {**dict.fromkeys(ACCOUNTS), **SAID, "reason": ""}


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
    estimate = without("outside", served())
    assert estimate.verdict.value == "uncertain"
    assert "may take an unknown size more" in estimate.verdict.reason


def divided(**changes: Any) -> Estimate:
    """Return an estimate of an engine on an H100 of 80 GiB."""
    estimate = served(80, **{**DIVIDED, **changes})
    return replace(estimate, job=replace(estimate.job, device=device("h100")), reserved=58 * GIB)


@pytest.mark.parametrize(
    ("card_gib", "value", "reason"),
    [
        (100, "fits", "KV cache 55.00 GiB: 450,560 tokens, 55.00 requests of 8,192 (vllm"),  # 40 + 0.75 * 20
        (72, "fits", "KV cache 34.00 GiB: 278,528 tokens, 34.00 requests of 8,192 (vllm"),  # 40 - 0.75 * 8
    ],
)
def test_share_of_a_card_with_the_same_kernels_changes_only_the_cache(card_gib: int, value: str, reason: str) -> None:
    estimate = divided()
    found = estimate.verdict_on(estimate.job.device.with_memory(card_gib * GIB))
    assert (found.value, reason in found.reason) == (value, True), found


@pytest.mark.parametrize(
    ("left_gib", "value", "reason"),
    [
        (6.5, "does not fit", "one request takes 1.00 GiB of KV cache, and 512.0 MiB are left"),  # 6.5 - 0.75 * 8
        (6.9375, "uncertain", "does not start, but may take"),  # 64 MiB are missing; the range has at most 133 MiB less
        (7.125, "uncertain", "starts with 128.0 MiB of its KV cache"),  # 1.125 are left
    ],
)
def test_smaller_card_may_be_too_small_for_a_request(left_gib: float, value: str, reason: str) -> None:
    estimate = divided(available_bytes=int(left_gib * GIB), kv_cache_bytes=int(left_gib * GIB))
    found = estimate.verdict_on(estimate.job.device.with_memory(72 * GIB))
    assert (found.value, reason in found.reason) == (value, True), found


def test_cards_on_which_the_engine_fits_are_told() -> None:
    fits = divided().to_dict()["fits"]
    assert [card for card, it_fits in fits.items() if it_fits] == ["h100", "h100-nvl", "h200", "gh200-120gb", "gh200-480gb"]


def test_smallest_card_may_be_smaller_than_the_share_of_the_traced_one() -> None:
    found = divided()
    text = str(replace(found, job=replace(found.job, has_card=False), process=100 * GIB))
    assert text.startswith("room on h100 (79.11 GiB) and 4 others")


@pytest.mark.parametrize("card", ["h100-pcie", "b200", "rtx4090"])  # fewer SMs, another capability, smaller batches
def test_other_kernels_leave_other_cards_uncertain(card: str) -> None:
    found = divided().verdict_on(card)
    assert (found.value, "divides each card anew: ask for this one" in found.reason) == ("uncertain", True)


@pytest.mark.parametrize("unknown", ["utilization", "available_bytes", "request_bytes", "tensor_parallel"])
def test_share_that_is_unknown_leaves_other_cards_uncertain(unknown: str) -> None:
    assert without(unknown, divided()).verdict_on("h200").value == "uncertain"


def test_engine_that_does_not_start_here_is_not_said_to_start_elsewhere() -> None:
    refused = divided(starts=False, available_bytes=0, max_context=512)
    assert refused.verdict.value == "does not fit"
    found = refused.verdict_on("h200")
    assert (found.value, "was not seen to start" in found.reason) == ("uncertain", True)


@pytest.mark.parametrize(("starts", "fits"), [(True, True), (False, False)])
def test_ranks_of_an_engine_fit_together(starts: bool, fits: bool) -> None:
    estimate = divided(starts=starts)
    header = {**estimate.trace.header, RANKS: {"world_size": 2, "fullest": 0, "peaks": [[0, GIB, 58 * GIB], [1, GIB, 9 * GIB]]}}
    found = replace(estimate, trace=replace(estimate.trace, header=header)).to_dict()["ranks"]
    assert [one["fits"] for one in found] == [fits, fits]


def test_each_stage_has_its_own_accounts() -> None:
    estimate = divided(activation_bytes=2 * GIB)
    first = {**estimate.trace.header[SERVING], "activation_bytes": GIB}
    ranks = {"world_size": 2, "fullest": 1, "peaks": [[0, GIB, 57 * GIB], [1, GIB, 58 * GIB]], "serving": {"0": first}}
    found = replace(estimate, trace=replace(estimate.trace, header={**estimate.trace.header, RANKS: ranks}))
    accounts = [one["serving"] for one in found.to_dict()["ranks"]]
    assert (accounts[0]["activation_bytes"], accounts[1]) == (GIB, None)
    assert "1.00 GiB allocated; weights 15.00 GiB, peak activation 1.00 GiB" in " ".join(found.details().split())


def test_refused_context_comes_with_the_longest_that_starts() -> None:
    estimate = without("kv_cache", served(starts=False, max_context=2048))
    assert "serves   vllm 0.22.1: it reached no KV cache; it starts with --max-model-len 2048" in str(estimate)


def test_engine_without_check_leaves_doubts() -> None:
    estimate = without("starts", served())
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
