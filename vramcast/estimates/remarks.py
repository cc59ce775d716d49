"""The warnings of an estimate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.core.releases import FREES_WORKSPACES
from vramcast.core.units import gib
from vramcast.estimates.phases import course_of
from vramcast.estimates.runs.on_card import OnCard
from vramcast.hardware.stack import release_of, same_minor
from vramcast.jobs import other_packages
from vramcast.jobs.job import Job
from vramcast.jobs.targets import is_denoiser
from vramcast.tracer.format.ledger import SPOKEN, CallHandling, Code, words
from vramcast.tracer.format.trace import Category
from vramcast.tracer.nullgpu.cudnn.libraries import warning_of

# measured: 243 of xMem's runs with cuDNN and 123 without, traced under 2.11.0 and 2.14.1 (benchmarks.surveys.moved, 2026-11)
_BETWEEN_RELEASES: Final = {
    True: "with cuDNN, releases differ by 2.6 % at most in nine of ten jobs, and by 6.1 % in the worst",
    False: "without cuDNN, releases differ by 0.1 % at most",
}


def remarks(job: Job, on_card: OnCard) -> Iterator[str]:
    """Yield the warnings of an estimate.

    Args:
        job: The job.
        on_card: Its result on the card.
    """
    seen, context = on_card.seen, on_card.context
    yield from on_card.trace.header.get("warnings", [])
    if is_denoiser(job.target):
        yield "the denoiser alone: the VAE and the text encoders are not included"
    if seen.adapted is not None and seen.adapted.whole:
        yield (
            f"{seen.adapted.whole:,} weights are not in 4 bits, because bitsandbytes packs only linear layers: experts that "
            "the model fuses into one parameter, or convolutions"
        )
    if job.command is not None:
        yield from job.command.notes
    if context.assumed:
        low, high = gib(context.low_bytes), gib(context.high_bytes)
        yield f"context {gib(context.bytes)} is assumed, not measured ({low} to {high}): {context.provenance}"
    missing = [entry for entry in seen.ledger if entry.is_unknown]
    shapes = sorted({SPOKEN.get(entry.name, entry.name) for entry in missing if entry.code is Code.DRAWN_SHAPE})
    if shapes:
        yield f"shapes depend on values that were drawn at random ({', '.join(shapes)}): this widens the bound"
    for name in words((entry for entry in missing if entry.code not in (Code.DRAWN_SHAPE, Code.OTHER_CUDNN)), *CallHandling):
        yield f"not known exactly: {name}; this widens the bound"
    for entry in seen.ledger:
        if entry.kind is CallHandling.BOUNDED:
            most = gib(entry.size_bytes // entry.hits)
            yield f"{entry.words} ({entry.hits} times; at most {most} each; the bound covers this)"
        if entry.kind is CallHandling.OUTSIDE:
            yield f"{entry.name} took {gib(entry.size_bytes)} outside PyTorch's allocator: counted in the process peak"
        if entry.kind is CallHandling.MANAGED:
            yield (
                f"{gib(entry.size_bytes)} is managed memory, which moves between host and card: the peaks leave it out, but "
                "it also takes card memory while space is left"
            )
    yield from _of_stack(job, on_card, is_another=any(entry.code is Code.OTHER_CUDNN for entry in missing))
    if reads := seen.count(CallHandling.READ):
        yield f"the host read from the device {reads} times and got zeros: a branch on such a value may differ on a GPU"
    if drawn := seen.count(CallHandling.DRAWN):
        yield f"the host read {drawn} numbers that depend on weights and got random ones: a branch may differ on a GPU"
    if on_card.out_of_memory is not None:
        yield f"does not fit on {job.device.name} ({gib(job.total_bytes)}); the peaks are those of an unlimited card"
    if job.command is not None:
        yield from _of_course(job, on_card)
    if on_card.min_feasible is None:
        yield "the smallest card (min_feasible) is unknown: no card is large enough, or the allocator's settings are unknown"
    yield from seen.notes


def _of_course(job: Job, on_card: OnCard) -> Iterator[str]:
    course, steps = course_of(on_card.trace), on_card.seen.steps
    if course.ended:
        yield f"the command ended early, and the peaks cover only the part before: {course.ended}"
    elif course.not_reached:
        yield f"not observed, so not covered by the bound: {'; '.join(course.not_reached)}"
    caught = on_card.trace.header.get("peaks", {}).get("ooms", 0) if on_card.out_of_memory is None else 0
    if caught:
        yield (
            f"the job caught {caught} out-of-memory errors and continued: its peaks depend on its reaction, and so on "
            "the size of the card"
        )
    if steps == 0 and Category.KV_CACHE not in on_card.trace.category:
        yield "no training step was observed: no optimizer stepped after a backward pass"
    elif 0 < steps < job.training.steps:
        yield f"the command ended after {steps} of {job.training.steps} training steps"


def _of_stack(job: Job, on_card: OnCard, *, is_another: bool) -> Iterator[str]:
    stack, torch = on_card.stack, on_card.seen.torch
    if stack.torch is not None and not same_minor(stack.torch, torch):
        frees = {(release_of(one) or FREES_WORKSPACES) >= FREES_WORKSPACES for one in (stack.torch, torch)}
        yield (
            f"the job was traced with the installed torch {torch}, but its stack has {stack.torch}: "
            f"{_BETWEEN_RELEASES['cudnn' in on_card.seen.libraries]}"
            + (", and by up to 64 MiB of workspaces since 2.15" if len(frees) == 2 else "")
        )
    yield from other_packages.remarks(job.stack)
    if "cudnn" in on_card.seen.libraries:
        yield from stack.notes
        if said := warning_of(job.stack):
            yield f"convolution workspaces: {said}" + ("; this widens the bound" if is_another else "")
