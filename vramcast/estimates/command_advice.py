"""Advice for a training command: changes that are applied while its program runs, each traced like the command itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from vramcast.core.errors import CannotEstimate, UsageError, VramcastError
from vramcast.core.progress import part
from vramcast.estimates.advice_rows import Advice, Row
from vramcast.estimates.axes.of_cards import PRICE, traced_over_cards
from vramcast.estimates.result import Estimate, Maker
from vramcast.hardware.cards import DEVICES
from vramcast.jobs.job import Job
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.applied_change import applied_change
from vramcast.tracer.format.operators import OperatorKind
from vramcast.tracer.protocol.run_options import RunOptions

_ALLOCATOR: Final = "PYTORCH_CUDA_ALLOC_CONF"
_SHARDED: Final = "FSDP2 over {} cards"


@dataclass(frozen=True, slots=True)
class _Variant:
    """A change of a command.

    Attributes:
        name: Its name.
        price: What it costs.
        changes: The changes in its program.
        job: The changed job, or None for the command's own.
        way: How a user makes it, if it is not a change in the program.
    """

    name: str
    price: str
    changes: tuple[tuple[str, Any], ...] = ()
    job: Job | None = None
    way: str = ""


def advise_command(estimate: Estimate, estimator: Maker) -> Advice:
    """Estimate a command with one change at a time.

    Args:
        estimate: The estimate of the command.
        estimator: Traces each variant.

    Returns:
        The command as it is, then the changes that fit, from the cheapest on, then the others. A change that the program does
        not allow is a row with the reason.

    Raises:
        UsageError: The command made no training step.
    """
    if not estimate.course.seen.steps:
        raise UsageError(f"The command makes no training step to change ({'; '.join(estimate.doubts) or 'it only infers'}).")
    variants = [*_variants(estimate)]
    rows = []
    for number, variant in enumerate(variants, 1):
        with part(variant.name, number, len(variants)):
            rows.append(_row(variant, estimate, estimator))
    rows += _sharded(estimate, estimator)
    rows = [replace(row, fits_card=None) if not estimate.has_card else row for row in rows]
    rows.sort(key=lambda row: (row.bound is None, row.fits_card is False))  # stable: from the cheapest change on
    return Advice((_made("as it is", "none", estimate, estimate), *rows), estimate.level, is_ranked=True)


def _variants(estimate: Estimate) -> Iterator[_Variant]:
    """Yield the changes, from the cheapest on."""
    job = estimate.job
    conf = estimate.alloc_conf.value
    if not Settings.parse(conf).expandable_segments:
        more = ",".join(filter(None, (conf, "expandable_segments:True")))
        yield _Variant("expandable segments", "none", job=replace(job, alloc_conf=more), way=f"{_ALLOCATOR}={more}")
    if applied_change(estimate.trace, "set-to-none").value is not None:
        yield _Variant("gradients dropped", "none", (("set-to-none", True),))
    yield _Variant("fused optimizer", "rounding only", (("fused", True),))
    yield _half_batch(estimate)
    yield _Variant("autocast bf16", "other numerics", (("autocast", True),))
    yield _Variant("checkpointing", "at most one more forward pass", (("checkpointing", True),))
    yield _Variant("8-bit optimizer", "quantized optimizer states", (("8-bit", True),))
    if applied_change(estimate.trace, "batch").owner == "Trainer":
        yield _Variant("half the length", "shorter lines", (("length", True),))
    yield _Variant("activation offload", "each saved activation to the host and back, in every step", (("offload", True),))


def _half_batch(estimate: Estimate) -> _Variant:
    batch, name = applied_change(estimate.trace, "batch"), "half the batch, accumulated twice"
    own = batch.value or 0
    if batch.search:
        return _Variant(name, "", way=f"{batch.search} chooses the batch: give it a smaller limit")
    if own < 2 or own % 2:
        return _Variant(name, "", way=f"a batch of {own or 'unknown size'} has no half")
    has_norm = any(operator.kind == OperatorKind.BATCH_NORM for operator in estimate.trace.operators)
    price = "twice the launches per step" + "; batch norm sees half batches" * has_norm
    return _Variant(name, price, (("batch", (own, own // 2)), ("accumulate", 2)))


def _sharded(estimate: Estimate, estimator: Maker) -> list[Row]:
    """Return a row for each traced number of cards that share the model's states."""
    try:
        found = traced_over_cards(estimate, estimator)
    except (UsageError, CannotEstimate) as error:
        return [Row(_SHARDED.format("more"), "", reason=str(error))]
    return [_made(_SHARDED.format(cards), PRICE.format(cards), estimate, *one) for cards, one in found.items()]


def _row(variant: _Variant, estimate: Estimate, estimator: Maker) -> Row:
    if variant.job is None and not variant.changes:
        return Row(variant.name, variant.price, reason=variant.way)
    try:
        found = estimator.estimate_job(variant.job or estimate.job, RunOptions(changes=variant.changes))
    except VramcastError as error:
        return _made(variant.name, variant.price, estimate, error)
    seen = [applied_change(found.trace, name) for name, _ in variant.changes]
    missing = [one for one in seen if not one.way]
    if missing:
        return Row(variant.name, variant.price, reason=missing[0].obstacle or "the program has nothing that it applies to")
    if found.course.ended and not estimate.course.ended:
        return Row(variant.name, variant.price, reason=f"with it, the command ended early ({found.course.ended})")
    return _made(variant.name, variant.price, estimate, found, variant.way or " and ".join(one.way for one in seen))


def _made(name: str, price: str, before: Estimate, found: Estimate | VramcastError, way: str = "") -> Row:
    if isinstance(found, VramcastError):
        return Row(name, price, reason=" ".join(str(found).split()))
    fits = {key: found.fits(key) for key in DEVICES}
    return Row(
        name, price, found.reserved, found.upper_bound, found.fits(found.card), fits, how=way or None,
        saves_bytes=before.process - found.process, verdict=found.verdict.value if found.has_card else None,
    )  # fmt: skip
