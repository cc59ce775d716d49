"""An estimate as text, for `print(estimate)` and the command line: at most seven lines, and all others as its details."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, Literal, TypeAlias

from vramcast.core.units import gib
from vramcast.estimates.result import Estimate
from vramcast.estimates.verdict import Value
from vramcast.report.answer import NAME, WIDTH, bound_holds_for, contexts_of, divides, headline, lines, step_words
from vramcast.report.card_bar import PARTS
from vramcast.tracer.format.rank_facts import HeldParameters, beside_bytes
from vramcast.tracer.format.serving import servings_of

Colour: TypeAlias = Literal["green", "yellow", "red", "dim"]
Paint: TypeAlias = Callable[[str, Colour], str]
_NUMBER: Final = re.compile(r"\d+")
_CELLS: Final = 40  # arbitrary: cells of the bar
_LEAST_CELLS: Final = 4  # arbitrary: cells of the bar on the narrowest terminal
_NARROW: Final = 60  # arbitrary: columns of a terminal below which lines hang by little
_SIZED: Final = 33  # spec: columns before the words of `_sized`
_NAMED: Final = 18  # spec: columns of a name there
# Parts of the card: held at the peak, up to the bound, free; the second row is for encodings without these characters.
SIGNS: Final = ("█▒·", "#+.")
_VERDICTS: Final[dict[Value, Colour]] = {"fits": "green", "uncertain": "yellow", "does not fit": "red"}


def _plain(text: str, colour: Colour) -> str:
    return text


def text(estimate: Estimate, width: int = WIDTH, *, paint: Paint = _plain, signs: str | None = None) -> str:
    """Return the answer: at most seven lines if `width` is at least 100.

    Args:
        estimate: The estimate.
        width: Columns; longer lines wrap at words.
        paint: Returns a text in a color.
        signs: Three characters of the bar; default: those that stdout can show.
    """
    first, *more = _wrapped(headline(estimate), width, 4)
    if estimate.has_card:
        value = estimate.verdict.value
        first = paint(value, _VERDICTS[value]) + first.removeprefix(value) if first.startswith(value) else first
        more.append(_bar(estimate, width, paint, signs or signs_of(getattr(sys.stdout, "encoding", None))))
    for line in lines(estimate):
        more += _wrapped(f"{line.name:<{NAME}}{line.words}", width, NAME)
    return "\n".join([first, *more])


def details(estimate: Estimate, width: int = WIDTH) -> str:
    """Return the lines that `text` leaves out."""
    rows = [*_peaks(estimate), *_places(estimate), *_parts(estimate), *_limits(estimate)]
    return "\n".join(line for row in rows for line in _wrapped(row, width, _hanging(row)))


def signs_of(encoding: str | None) -> str:
    """Return the characters of a bar for an encoding."""
    try:
        SIGNS[0].encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return SIGNS[1]
    return SIGNS[0]


def _bar(estimate: Estimate, width: int, paint: Paint, signs: str) -> str:
    """Return the card as a bar: the job's peak, the reach of its bound, and the free rest."""
    held, reach, free = tuple(signs)
    cells = max(_LEAST_CELLS, min(_CELLS, width - 2))

    def filled(size_bytes: int) -> int:
        """Return the number of cells of a size: at least one, and all of them only for the whole card."""
        return min(cells, max(1, size_bytes * cells // estimate.card_bytes))

    peak = filled(estimate.process)
    bound = peak if estimate.doubts else max(peak, filled(estimate.upper_bound))
    bar = paint(held * peak, _VERDICTS[estimate.verdict.value]) + paint(reach * (bound - peak), "yellow")
    return f"[{bar}{paint(free * (cells - bound), 'dim')}]"


def _wrapped(line: str, width: int, indent: int) -> list[str]:
    """Return a line wrapped at words; the lines below its first are indented."""
    below = " " * (indent if width >= _NARROW else 2)
    return textwrap.wrap(line, width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False) or [""]


def _hanging(row: str) -> int:
    """Return the column at which the words of a row begin."""
    if row[_SIZED - 3 : _SIZED] == "   ":
        return _SIZED
    return _NAMED if row[_NAMED - 2 : _NAMED] == "  " else 2


def _sized(name: str, size: str, words: str) -> str:
    return f"{name:<18}{size:>12}   {words}"


def _peaks(estimate: Estimate) -> Iterator[str]:
    """Yield the three peaks, the bound with its margin, and the verdict for the card."""
    context = estimate.context
    claim = "of the observed part" if estimate.doubts else f"for {bound_holds_for(estimate)}"
    smallest = "unknown" if estimate.min_feasible is None else gib(estimate.min_feasible)
    assumed = " (assumed)" if context.assumed else ""
    beside = beside_bytes(estimate.trace)
    others = f" + other processes {gib(beside)}" if beside else ""
    sums = f"reserved {gib(estimate.reserved)} + {contexts_of(estimate)} {gib(context.bytes - beside)}{assumed}{others}"
    yield _sized("process peak", gib(estimate.process), sums)
    yield _sized("upper bound", gib(estimate.upper_bound), claim)
    for part in estimate.margin():
        yield _sized(f"  for {part.part}", gib(part.size_bytes), str(part))
    yield _sized("reserved", gib(estimate.reserved), "torch.cuda.max_memory_reserved()")
    yield _sized("allocated", gib(estimate.allocated), "torch.cuda.max_memory_allocated()")
    yield _sized("smallest card", smallest, "on which the job runs")
    if estimate.has_card:
        yield _sized("card", gib(estimate.card_bytes), f"{estimate.job.device.name}: {estimate.verdict}")


def _places(estimate: Estimate) -> Iterator[str]:
    """Yield the breakdown of the bytes at the peak, and the peak's position."""
    if estimate.alloc_conf.value:
        yield f"allocator         {estimate.alloc_conf.value}   by the {estimate.alloc_conf.source}"
    parts = ", ".join(f"{PARTS[name].name} {gib(size)}" for name, size in estimate.breakdown.items() if size)
    yield f"at the peak       {parts}"
    if estimate.inputs_text:
        yield f"inputs            {estimate.inputs_text}"
    at = estimate.peak_at
    place = f"{at['module'] or 'outside of modules'}, {at['op'] or 'no operator'}"
    yield f"peak in           {step_words(at['step'])}, {at['phase']}, {place}"


def _parts(estimate: Estimate) -> Iterator[str]:
    """Yield the adapters, and the peaks of a command's phases and of a job's ranks."""
    if estimate.adapted is not None:
        yield f"adapter           {estimate.adapted.words}"
    for phase in estimate.course.phases:
        if phase.reached:
            yield _sized(phase.name, gib(phase.reserved or 0), f"reserved, {gib(phase.allocated or 0)} allocated")
    servings = servings_of(estimate.trace)
    for one in estimate.ranks:
        name = f"rank {one.number} of {estimate.world_size}"
        serving = servings.get(str(one.number))
        divided = f"; {divides(serving)}" if serving is not None else ""
        yield _sized(name, gib(one.reserved), f"reserved, {gib(one.allocated)} allocated{divided}")
    for process in estimate.processes:
        with_others = "with the others" if process.is_at_once else "before or after these"
        yield _sized("a process", gib(process.reserved), f"reserved, {with_others}: {process.command}")
    if estimate.job.parallel is not None:
        yield f"batch             per rank; all {estimate.world_size} ranks make a step together"
    if estimate.sharding:
        yield from shard_table(estimate.sharding)
    for communicator in estimate.communicators:
        if communicator.calls:
            yield _sized("communicator", gib(communicator.bytes_assumed), f"assumed, {communicator}")


def _limits(estimate: Estimate) -> Iterator[str]:
    """Yield the limits of the numbers, and the warnings."""
    if (slow := estimate.slow_card_peaks) is not None:
        why = "blocks shared by streams are freed as late as possible"
        yield _sized("on a slow card", gib(slow.reserved), f"reserved, {gib(slow.allocated)} allocated: {why}")
    if (larger := estimate.larger_plans) is not None:
        bare = f", {gib(estimate.without_workspaces)} without workspaces" if estimate.without_workspaces is not None else ""
        said = f"reserved by cuDNN {larger.cudnn}, {gib(estimate.reserved)} by {estimate.cudnn}{bare}: the bound covers both"
        yield _sized("other plans", gib(larger.reserved), said)
    if (growth := estimate.growth) is not None:
        yield f"growth            {growth}"
    if estimate.course.phases:
        yield f"seen              {str(estimate.course.seen).removeprefix('saw ')}"
    if estimate.course.not_reached:
        yield f"not reached       {'; '.join(estimate.course.not_reached)}"
    for warning in estimate.warnings:
        yield f"warning: {warning}"


def shard_table(rows: Sequence[HeldParameters]) -> Iterator[str]:
    """Yield the shards of each module's parameters on a rank; adjacent equal modules share a line, `layers.0 to 31`."""
    yield f"{'parameters of':<34} {'full':>12} {'shard here':>12} {'replicated':>12}"
    for _, group in groupby(rows, key=lambda one: (_NUMBER.sub("", one.module), one.full, one.sharded, one.replicated)):
        same = list(group)
        name = same[0].module + (f" to {same[-1].module.rpartition('.')[2]}, each" if len(same) > 1 else "")
        yield _shards(name, same[:1])
    yield _shards("all", rows)


def _shards(name: str, rows: Sequence[HeldParameters]) -> str:
    sizes = (sum(getattr(one, part) for one in rows) for part in ("full", "sharded", "replicated"))
    return " ".join([f"{name:<34}", *(f"{gib(size):>12}" for size in sizes)])
