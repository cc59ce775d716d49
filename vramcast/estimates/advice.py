"""`advise`: the memory of variants of a job, each traced like the job itself, with its price in time or exactness.

    advice = vramcast.advise(vramcast.estimate(model, batch))
    print(advice)

Nothing is guessed: a variant that cannot be traced is a row with the reason, and a price states only known facts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from vramcast.core.errors import CannotEstimate, VramcastError
from vramcast.core.progress import part
from vramcast.core.units import gib
from vramcast.estimates.advice_rows import Advice, Row
from vramcast.estimates.axes.of_cards import PRICE, traced_over_cards
from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.command_advice import advise_command
from vramcast.estimates.engine_advice import advise_engine
from vramcast.estimates.result import Estimate, Maker
from vramcast.hardware.cards import DEVICES
from vramcast.jobs import optimizers
from vramcast.jobs.commands import engines
from vramcast.jobs.job import Job, specs_in
from vramcast.plans.blocks import blocks_by_worth, forward_us
from vramcast.plans.free_options import free_options
from vramcast.plans.planner import has_reads, plan_pool, plan_swap
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.operators import OperatorKind
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.processes.thread_pool import in_parallel
from vramcast.tracer.program.variations import accumulate, checkpoint_blocks
from vramcast.tracer.protocol.run_options import RunOptions

AS_IT_IS: Final = "as it is"
_ONE_BLOCK: Final = "one block first"
_POOL: Final = "follow a plan"
_POOL_WORK: Final = 400_000_000  # arbitrary: a tenth of what `vramcast plan` spends, half a second
_SWAP: Final = "swapping without overhead"
_SHARDED: Final = "sharded over {} cards (FSDP2)"
_MOST_WORLDS: Final = 8  # arbitrary: enough for the fewest of 2 to 1,024 cards


def advise(estimate: Estimate, *, timeout_s: float | None = None) -> Advice:
    """Estimate variants of a job, one change at a time: checkpointing, precision, optimizer, batch, sharding and so on.

    Of a training command, the changes are applied while its program runs, and each row says how a user makes it. Of a command
    that starts vLLM: an fp8 KV cache, a larger share of the card, a shorter context, more cards.

    Args:
        estimate: An estimate of a model or a command. Each variant of its job is traced with the same
            tracer, and gets the same kind of bound.
        timeout_s: Time limit for each variant, in seconds; default: the estimate's own.

    Returns:
        The variants by bound, smallest first, with sizes in bytes. A variant that cannot be traced is a row with the reason.

    Raises:
        UsageError: The estimate is for a command that has neither a training step nor an engine.

    Example:
        >>> forward = vramcast.estimate(model, batch, mode="infer", precision="bf16")
        >>> advice = vramcast.advise(forward)
        >>> [row.name for row in advice.rows]
        [...'half the batch'...]
    """
    job = estimate.job
    limit = {} if timeout_s is None else {"timeout_s": timeout_s}
    estimator = estimate.estimator.changed(level=estimate.level, **limit)  # one level for all rows
    if job.command is not None:
        is_server = engines.is_server(job.command.words)
        return (advise_engine if is_server else advise_command)(estimate, estimator)
    rows = [_row(AS_IT_IS, "none", estimate), *_placed(estimate)]
    accesses: Trace | None = None
    try:
        watched = estimator.estimate_job(job, RunOptions(accesses=True))
        if not has_reads(watched.trace):
            raise CannotEstimate(f"the {watched.tracer} tracer does not record reads of blocks")
        accesses = watched.trace
        rows.append(_swap(estimate, accesses))
    except VramcastError as error:
        rows.append(_untraced(_SWAP, "", error))

    variants = [*_variants(estimate, accesses), *_ranks(estimate, estimator)]

    def row(number: int) -> Row:
        variant = variants[number]
        if isinstance(variant, Row):
            return variant
        name, price, changed = ("more cards", "", job) if callable(variant) else variant
        with part(name, number + 1, len(variants)):
            try:
                return variant() if callable(variant) else _row(name, price, estimator.estimate_job(changed))
            except VramcastError as error:
                return _untraced(name, price, error)

    rows += in_parallel(row, range(len(variants)))
    if not estimate.has_card:
        rows = [replace(row, fits_card=None) for row in rows]
    return Advice(tuple(sorted(rows, key=lambda row: (row.bound is None, row.bound or 0))), estimate.level)


# ------------------------------------------------------------------------------------------------ variants
_Variant = tuple[str, str, Job] | Row | Callable[[], Row]


def _variants(estimate: Estimate, accesses: Trace | None) -> Iterator[_Variant]:
    """Yield (name, price, job) for each change that applies to this job, or the row of a change that cannot be made."""
    job, training = estimate.job, estimate.job.training
    trains = training.mode == "train"
    if not Settings.parse(estimate.alloc_conf.value).expandable_segments:
        conf = ",".join(filter(None, (estimate.alloc_conf.value, "expandable_segments:True")))
        yield "expandable segments", "none", replace(job, alloc_conf=conf)
    if trains:
        yield from _checkpointing(estimate, accesses)
    for precision in ("bf16", "amp-bf16"):
        if training.precision == "fp32" or (training.precision.startswith("amp-") and precision == "bf16"):
            yield f"precision {precision}", "other numerics", job.with_training(precision=precision)
    if trains:
        yield from _optimizers(job)
    yield _half_batch(estimate)
    if not training.channels_last and _runs(estimate.trace, OperatorKind.CONVOLUTION, OperatorKind.CONVOLUTION_BACKWARD):
        yield "channels_last", "none", job.with_training(channels_last=True)
    for place in ("step-start", "after-step") if trains else ():
        if place != training.zero_grad:
            yield f"zero_grad {place}", "none", job.with_training(zero_grad=place)


def _checkpointing(estimate: Estimate, accesses: Trace | None) -> Iterator[_Variant]:
    """Yield the model's own switch, then torch.utils.checkpoint around the blocks that save most, and around all blocks."""
    job = estimate.job
    if job.training.checkpointing:
        return
    yield "checkpointing, the model's switch", "at most one more forward pass", job.with_training(checkpointing=True)
    blocks = blocks_by_worth(estimate.trace, accesses)
    if job.parallel is not None and not job.parallel.is_sharded:  # DDP's own module wraps the model
        blocks = [replace(block, path=block.path.removeprefix("module.")) for block in blocks]
    if not blocks:
        yield Row("checkpointing by block", "", reason="the model has no numbered blocks, such as layers.0.linear")
        return
    held = np.cumsum([block.held_bytes for block in blocks])
    whole_us = int(forward_us(accesses).sum()) if accesses is not None else 0
    half = int(np.searchsorted(held, held[-1] / 2)) + 1
    for n in sorted({half, len(blocks)} if held[-1] else {len(blocks)}):
        names = [block.path for block in blocks[:n]]
        name = f"checkpointing {n} of {len(blocks)} blocks" if n < len(blocks) else f"checkpointing all {n} blocks"
        price = "at most one more forward pass" if n == len(blocks) else "one more forward pass of these blocks"
        if accesses is not None:
            share = sum(block.forward_us for block in blocks[:n]) / max(whole_us, 1)
            price = f"{share:.0%} of the forward pass once more, by the roofline"
        if n < len(blocks):
            price += f": {', '.join(names)}"
        yield name, price, checkpoint_blocks(job, names)


def _optimizers(job: Job) -> Iterator[_Variant]:
    stated = job.training.optimizer
    if not isinstance(stated, str):
        yield Row("another optimizer", "", reason="the job's optimizer is a callable, which has no name to change")
        return
    name, _, pairs = stated.partition(":")
    known, options = optimizers.parse(stated)
    if optimizers.is_fusable(stated) and "fused" not in options:
        kept = [pair for pair in pairs.split(",") if pair and not pair.startswith("foreach")]
        yield "fused optimizer", "rounding only", job.with_training(optimizer=f"{name}:{','.join([*kept, 'fused=true'])}")
    if known != "sgd" or options.get("momentum"):
        yield "SGD without momentum", "another optimizer: other convergence", job.with_training(optimizer="sgd")


def _ranks(estimate: Estimate, estimator: Maker) -> Iterator[_Variant]:
    """Yield sharded variants of a training job: over the existing ranks for DDP, over more cards for a single one."""
    parallel = estimate.job.parallel
    if estimate.job.training.mode != "train":
        return
    if parallel is None:
        yield functools.partial(_sharded, estimate, estimator)
    elif not parallel.is_sharded:
        sharded = replace(estimate.job, parallel=replace(parallel, kind="fsdp"))
        size = parallel.world.size
        yield _SHARDED.format(size), PRICE.format(size), sharded


def _sharded(estimate: Estimate, estimator: Maker) -> Row:
    """Return the row for FSDP2 over the fewest cards on which each rank fits with the whole batch, or over the most traced."""
    try:
        found = traced_over_cards(estimate, estimator, traces=_MOST_WORLDS)
    except VramcastError as error:
        return _untraced(_SHARDED.format("more"), "", error)
    fitting = [cards for cards, (one, _) in found.items() if not isinstance(one, CannotEstimate) and one.fits()]
    cards = min(fitting, default=max(found))
    one, name = found[cards][0], _SHARDED.format(cards) if fitting else f"sharded, up to {cards} cards (FSDP2)"
    if isinstance(one, CannotEstimate):
        return _untraced(name, "", one)
    return _row(name, PRICE.format(cards) if fitting else "not enough: each card keeps its own batch", one)


def _half_batch(estimate: Estimate) -> _Variant:
    job, trains = estimate.job, estimate.job.training.mode == "train"
    name = "half the batch" + (", accumulated twice" if trains else "")
    price = "twice the launches per step" if trains else "twice the launches"
    if trains and _runs(estimate.trace, OperatorKind.BATCH_NORM):
        price += "; batch norm sees half batches"
    sizes = {spec.shape[0] for spec in specs_in(job.batch, job.labels) if spec.shape}
    if len(sizes) != 1 or min(sizes) % 2 or min(sizes) == 0:
        first = ", ".join(map(str, sorted(sizes))) or "none"
        return Row(name, price, reason=f"first dimensions of the batch's tensors: {first}; one even number is needed")
    half = job.with_batch(min(sizes) // 2)
    return name, price, accumulate(half) if trains else half


def _runs(trace: Trace, *kinds: OperatorKind) -> bool:
    return any(operator.kind in kinds for operator in trace.operators)


# ------------------------------------------------------------------------------------------------ rows
def _row(name: str, price: str, found: Estimate) -> Row:
    return Row(
        name, price, found.reserved, found.upper_bound, found.fits(found.card), {key: found.fits(key) for key in DEVICES}
    )


def _untraced(name: str, price: str, error: VramcastError) -> Row:
    return Row(name, price, reason=" ".join(str(error).split()))


def _placed(estimate: Estimate) -> Iterator[Row]:
    """Yield the rows for one block first, and for a followed plan if that takes less than all options without a plan."""
    free = free_options(estimate.trace, Settings.parse(estimate.alloc_conf.value))
    price = f"none: request and free {gib(free.first_bytes)} before the job"
    yield _row(_ONE_BLOCK, price, _planned(estimate, free.one_block_bytes))
    try:
        plan = plan_pool(estimate.trace, work=_POOL_WORK)
    except CannotEstimate as error:
        yield _untraced(_POOL, "", error)
        return
    least_bytes = min(free.least_bytes, estimate.reserved)
    if plan.height_bytes < least_bytes:
        price = f"{1 - plan.height_bytes / least_bytes:.1%} below the options without a plan; needs `vramcast follow`"
        yield _row(_POOL, price, _planned(estimate, plan.height_bytes))


def _swap(estimate: Estimate, accesses: Trace) -> Row:
    """Return the row for the smallest peak at which no operator waits for a copy."""
    plan = plan_swap(accesses)
    price = f"no wait by the roofline; {gib(plan.moved_bytes)} each way per step over {plan.link.name}"
    return _row(_SWAP, price, _planned(estimate, plan.peak_bytes))


def _planned(estimate: Estimate, height_bytes: int) -> Estimate:
    """Return the estimate as if all blocks shared one allocation of `height_bytes`, with a bound of the same kind."""
    plain = replace(
        estimate,
        reserved=height_bytes,
        process=height_bytes + estimate.context.bytes,
        out_of_memory=None,
        bound=PublicBound(height_bytes, estimate.libraries, estimate.unknown),
    )
    return estimate.estimator.apply_artifact(plain)
