"""Text and tables of a report: answer, margin, phases, ranks, advice, assumptions, versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from vramcast.core.text import printable
from vramcast.core.units import gib
from vramcast.estimates.advice_rows import Advice
from vramcast.estimates.bounds.support import jobs_below
from vramcast.estimates.result import Estimate
from vramcast.estimates.verdict import Verdict
from vramcast.hardware.cards import DEVICES
from vramcast.report.answer import Line, bound_holds_for, headline, lines
from vramcast.views.charts.page import ChartTable

_MODULES: Final = 15  # arbitrary: rows of the table
COLOURS: Final = {"fits": "good", "does not fit": "alarm", "uncertain": "doubt"}
_CALLS: Final = 12  # arbitrary: number of calls named in a line


class AnswerText(NamedTuple):
    """The headline, the name of its colour, the lines below it, and sentences that explain the verdict."""

    headline: str
    colour: str
    lines: tuple[Line, ...]
    sentences: tuple[str, ...]


def answer(estimate: Estimate) -> AnswerText:
    """Return the answer that the text has too, with its explanation."""
    first = headline(estimate)
    verdict = estimate.verdict if estimate.has_card else None
    colour = COLOURS[verdict.value] if verdict is not None else "doubt"
    sentences = tuple(_sentences(estimate, verdict)) if verdict is not None else ()
    return AnswerText(f"{first[0].upper()}{first[1:]}", colour, lines(estimate, " below"), sentences)


def _sentences(estimate: Estimate, verdict: Verdict) -> Iterator[str]:
    if estimate.doubts or estimate.growth is not None:
        yield f"{verdict.reason[0].upper()}{verdict.reason[1:]}."
    missing_bytes, free_bytes = estimate.process - estimate.card_bytes, estimate.card_bytes - estimate.upper_bound
    if missing_bytes > 0:
        yield f"{gib(missing_bytes)} are missing."
    elif verdict.value == "fits":
        yield f"{gib(free_bytes)} stay free above the upper bound."
    elif free_bytes < 0:
        yield "The peak fits, but the upper bound does not: the job may run out of memory."
    fitting = [card for key, card in DEVICES.items() if estimate.fits(key)]
    if fitting:
        least = min(fitting, key=lambda card: card.total_bytes)
        yield f"The smallest known card with room for the upper bound: {least.name} ({gib(least.total_bytes)})."
    elif not estimate.doubts:
        yield "No known card has room for the upper bound."


def margin(estimate: Estimate) -> ChartTable:
    """Return the parts of the margin between peak and bound; no rows if no bound holds."""
    parts = () if estimate.doubts else estimate.margin()
    rows = [(one.part, gib(one.size_bytes), one.because, one.remedy, gib(one.saves_bytes)) for one in parts]
    columns = ("part", "size", "cause", "remedy", "saves up to")
    return ChartTable("Parts of the margin", columns, rows)


def peaks(estimate: Estimate) -> ChartTable:
    """Return the three peaks and the smallest card."""
    context = estimate.context
    smallest = "unknown" if estimate.min_feasible is None else gib(estimate.min_feasible)
    assumed = " (assumed)" if context.assumed else ""
    rows = [
        ("allocated", gib(estimate.allocated), "live blocks: torch.cuda.max_memory_allocated()"),
        ("reserved", gib(estimate.reserved), "the allocator's segments: torch.cuda.max_memory_reserved()"),
        (
            "process",
            gib(estimate.process),
            f"reserved + CUDA context {gib(context.bytes)}{assumed}: as in nvidia-smi",
        ),
        ("smallest card", smallest, "the smallest on which the job runs, when the allocator releases memory and retries"),
    ]
    return ChartTable("Peaks", ("peak", "size", "meaning"), rows)


def modules(estimate: Estimate) -> ChartTable:
    """Return the modules with most bytes at the peak of live blocks."""
    found = estimate.by_module
    all_bytes = max(sum(found.values()), 1)
    rows = [
        (printable(name) or "no module", gib(size), f"{size / all_bytes:.1%}") for name, size in list(found.items())[:_MODULES]
    ]
    note = f"The {len(rows)} largest of {len(found)}." if len(found) > len(rows) else ""
    return ChartTable("Modules at the peak", ("module", "live bytes", "share"), rows, note)


def more_tables(estimate: Estimate, advice: Advice | None) -> list[ChartTable]:
    """Return the tables that only some jobs have: phases, ranks, shards, communicators, advice."""
    found = [_phases(estimate), _ranks(estimate), _sharding(estimate), _communicators(estimate)]
    return [table for table in [*found, *([_advice(advice)] if advice is not None else [])] if table.rows]


def _phases(estimate: Estimate) -> ChartTable:
    course = estimate.course
    rows = [
        (
            phase.name,
            str(phase.steps),
            *(gib(size) if size is not None else "not reached" for size in (phase.allocated, phase.reserved)),
        )
        for phase in course.phases
    ]
    note = f"Not reached: {'; '.join(course.not_reached)}." if course.not_reached else ""
    return ChartTable("Phases of the command", ("phase", "steps", "allocated", "reserved"), rows, note)


def _ranks(estimate: Estimate) -> ChartTable:
    context_bytes = estimate.context.bytes
    rows = [
        (f"rank {one.number}", gib(one.allocated), gib(one.reserved), gib(one.reserved + context_bytes))
        for one in estimate.ranks
    ]
    note = f"Of {estimate.world_size} ranks, these were traced; the others are assumed equal. The report is for the fullest."
    return ChartTable("Ranks", ("rank", "allocated", "reserved", "process"), rows, note)


def _sharding(estimate: Estimate) -> ChartTable:
    rows = [(one.module, *map(gib, (one.full, one.sharded, one.replicated))) for one in estimate.sharding]
    return ChartTable("Parameters of a rank", ("module", "all ranks", "its shard", "replicated"), rows)


def _communicators(estimate: Estimate) -> ChartTable:
    rows = [(str(one), gib(one.bytes_assumed)) for one in estimate.communicators if one.calls]
    return ChartTable("NCCL's communicators", ("communicator", "assumed size"), rows)


def _advice(advice: Advice) -> ChartTable:
    rows = []
    for row in advice.rows:
        if row.reserved is None or (row.bound is None and not advice.is_of_engine):
            rows.append((row.name, "not traced", "", "", "", row.reason or ""))
            continue
        fits = {True: "fits", False: "does not fit", None: "unknown"}[row.fits_card]
        smallest = DEVICES[row.smallest_device].name.removeprefix("NVIDIA ") if row.smallest_device is not None else "none"
        tokens = "none" if row.kv_cache_tokens is None else f"{row.kv_cache_tokens:,}"
        size = tokens if row.bound is None else gib(row.bound)
        rows.append((row.name, gib(row.reserved), size, fits, smallest, row.price))
    size, note = "upper bound", f"Upper bounds are for {jobs_below(advice.level)}."
    if advice.is_of_engine:
        size, note = "tokens", "Tokens are those in the KV cache."
    return ChartTable("Variants of the job", ("change", "reserved", size, "this card", "fits from", "price"), rows, note)


def assumed(estimate: Estimate) -> list[str]:
    """Return the warnings and assumptions: unanswered calls, the context, the runs behind the bound."""
    context = estimate.context
    found = [one[0].upper() + one[1:] for one in estimate.warnings if one]
    if estimate.out_of_memory is not None:
        found.append(f"On the card itself, torch would raise: {estimate.out_of_memory}")
    if estimate.unknown:
        found.append(f"Calls without a full answer: {_some(estimate.unknown)}")
    if estimate.unbounded_calls:
        found.append(f"No largest size is known, so no bound holds, for {_some(estimate.unbounded_calls)}")
    if context.assumed and not any("context" in one for one in estimate.warnings):
        found.append(f"The CUDA context of {gib(context.bytes)} is assumed: {context.provenance}")
    found.append(f"The upper bound is for {bound_holds_for(estimate)}")
    return found


def _some(calls: tuple[str, ...]) -> str:
    more = f", and {len(calls) - _CALLS} more" if len(calls) > _CALLS else ""
    return ", ".join(calls[:_CALLS]) + more


def made_with(estimate: Estimate, version: str) -> ChartTable:
    """Return the versions and settings of the estimate."""
    stack, conf = estimate.stack, estimate.alloc_conf
    rows = [
        ("vramcast", version),
        ("tracer", f"{estimate.tracer}, {estimate.steps} steps"),
        ("torch here", estimate.torch),
        ("torch, CUDA, cuDNN of the card", ", ".join(one or "unknown" for one in (stack.torch, stack.cuda, stack.cudnn))),
        *([("adapter", estimate.adapted.words)] if estimate.adapted is not None else []),
        ("allocator settings", f"{conf.value} (by the {conf.source})" if conf.value else "torch's own"),
    ]
    return ChartTable("Versions and settings", ("item", "value"), rows)
