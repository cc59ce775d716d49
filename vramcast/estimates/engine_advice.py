"""Advice for a serving engine: options of its command that leave more room for the KV cache, each traced like the command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from vramcast.core.errors import UsageError, VramcastError
from vramcast.core.progress import part
from vramcast.estimates.advice_rows import Advice, Row
from vramcast.estimates.result import Estimate, Maker
from vramcast.hardware.cards import DEVICES
from vramcast.jobs.commands import engines
from vramcast.jobs.job import Command
from vramcast.tracer.format.serving import EngineAccounts

_SHARE: Final = 0.95  # arbitrary: of the card, for the engine
_RANKS: Final = (2, 4, 8)  # arbitrary: cards of one machine


def advise_engine(estimate: Estimate, estimator: Maker) -> Advice:
    """Estimate a server's command with other options, one at a time, and with the smallest larger number of cards that starts.

    Args:
        estimate: The estimate of the command.
        estimator: Traces each variant.

    Raises:
        UsageError: The command ended before it had an engine.
    """
    command, serving = estimate.job.command, estimate.serving
    if command is None or serving is None:
        raise UsageError(f"The command has no engine to change ({'; '.join(estimate.doubts)}): repair it first.")
    rows = [_row("as it is", "none", estimate)]
    rows += [
        _traced(name, price, estimate, engines.changed(command, *options), estimator)
        for name, price, options in _variants(serving)
    ]
    for ranks in [ranks for ranks in _RANKS if ranks > (serving.tensor_parallel or 1)]:
        more = engines.changed(command, "--tensor-parallel-size", str(ranks))
        rows.append(_traced(f"{ranks} cards", "as many cards", estimate, more, estimator))
        if rows[-1].fits_card:
            break
    return Advice(tuple(sorted(rows, key=lambda row: -(row.kv_cache_tokens or 0))), estimate.level, is_of_engine=True)


def _variants(serving: EngineAccounts) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the name, the price and the options of each change that needs no other card."""
    yield "fp8 KV cache", "rounded keys and values", ("--kv-cache-dtype", "fp8")
    if serving.utilization is None or serving.utilization < _SHARE:
        yield f"utilization {_SHARE}", "less room for others", ("--gpu-memory-utilization", str(_SHARE))
    if serving.context_tokens is not None:
        shorter = serving.context_tokens // 2 if serving.starts or not serving.max_context else serving.max_context
        yield f"context of {shorter:,}", "shorter requests", ("--max-model-len", str(shorter))


def _traced(name: str, price: str, estimate: Estimate, command: Command, estimator: Maker) -> Row:
    try:
        with part(name, 1, 1):
            return _row(name, price, estimator.estimate_job(replace(estimate.job, command=command)))
    except VramcastError as error:
        return Row(name, price, reason=" ".join(str(error).split()))


def _row(name: str, price: str, found: Estimate) -> Row:
    serving = found.serving
    tokens, requests = (None, None) if serving is None else (serving.kv_cache_tokens, serving.max_concurrency)
    verdict = found.verdict_on(found.card)
    starts = None if verdict.value == "uncertain" else verdict.value == "fits"
    fits = {key: found.fits(key) for key in DEVICES}
    return Row(name, price, found.reserved, None, starts, fits, kv_cache_tokens=tokens, max_concurrency=requests)
