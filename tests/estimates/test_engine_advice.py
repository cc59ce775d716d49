"""Advice for a serving engine: the options that are tried, and their rows; no engine starts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.estimates.test_serving_engines import DIVIDED, served, without
from vramcast.core.errors import UsageError
from vramcast.core.units import GIB
from vramcast.estimates.engine_advice import advise_engine
from vramcast.estimates.result import Estimate
from vramcast.jobs.commands.engines import changed
from vramcast.jobs.job import Command, Job, Training

WORDS = ("/bin/vllm", "serve", "org/name")


def commanded(words: tuple[str, ...], **accounts: Any) -> Estimate:
    """Return an estimate of a command with these accounts of its engine."""
    estimate = served(80, **{**DIVIDED, **accounts})
    job = Job(estimate.job.device, command=Command(words), training=Training(), memory_bytes=80 * GIB)
    return replace(estimate, job=job)


def advised(starts_with: int, **accounts: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the options tried, and the rows by name; an engine starts from that many cards."""
    tried = []

    def estimate_job(job: Job) -> Estimate:
        assert job.command is not None
        tried.append(" ".join(job.command.words[len(WORDS) :]))
        if job.world.size < starts_with:
            return without("kv_cache_tokens", without("max_concurrency", commanded(WORDS, starts=False)))
        return commanded(WORDS, kv_cache_tokens=1000 * job.world.size)

    first = commanded(WORDS, **accounts)
    assert first.serving is not None
    advice = advise_engine(first, SimpleNamespace(estimate_job=estimate_job))  # type: ignore[arg-type]
    return tried, {row.name: row for row in advice.rows}


def test_traces_each_option_and_twice_the_cards() -> None:
    tried, rows = advised(1)
    assert tried == [
        "--kv-cache-dtype fp8", "--gpu-memory-utilization 0.95", "--max-model-len 4096", "--tensor-parallel-size 2",
    ]  # fmt: skip
    assert rows["2 cards"].kv_cache_tokens == 2000
    assert rows["as it is"].kv_cache_tokens == DIVIDED["kv_cache_tokens"]


def test_engine_that_does_not_start_gets_its_longest_context_and_smallest_number_of_cards() -> None:
    tried, rows = advised(4, starts=False, max_context=1234)
    assert "--max-model-len 1234" in tried
    assert (rows["2 cards"].fits_card, rows["4 cards"].fits_card) == (False, True)
    assert "8 cards" not in rows


def test_changed_command_has_the_ranks_it_asks_for() -> None:
    two = changed(Command(("vllm", "serve", "org/name", "-tp", "4")), "--tensor-parallel-size", "2")
    assert two.world.size == 2
    assert dict(two.environment)["WORLD_SIZE"] == "2"


def test_table_has_tokens_and_requests() -> None:
    first = commanded(WORDS)
    assert first.serving is not None
    fails = SimpleNamespace(estimate_job=lambda job: (_ for _ in ()).throw(UsageError("16 heads for 3 ranks")))
    text = str(advise_engine(first, fails))  # type: ignore[arg-type]
    assert "327,680       40.00   fits" in text
    assert "not traced: fp8 KV cache: 16 heads for 3 ranks" in text


def test_uncertain_start_is_neither_yes_nor_no() -> None:
    first = commanded(WORDS, max_concurrency=1.01)
    assert first.serving is not None
    advice = advise_engine(first, SimpleNamespace(estimate_job=lambda job: first))  # type: ignore[arg-type]
    assert first.verdict.value == "uncertain"
    assert {row.fits_card for row in advice.rows} == {None}
    assert "1.01   ?     none" in str(advice)


def test_engine_that_never_starts_keeps_its_table() -> None:
    first = without("kv_cache_tokens", without("max_concurrency", commanded(WORDS, starts=False)))
    assert first.serving is not None
    advice = advise_engine(first, SimpleNamespace(estimate_job=lambda job: first))  # type: ignore[arg-type]
    row = ["as", "it", "is", "none", "none", "no", "none"]
    assert row in [line.split() for line in str(advice).splitlines()]
