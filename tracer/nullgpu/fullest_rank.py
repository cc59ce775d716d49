"""Selection of the rank that takes most of its card: it decides whether the job fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from vramcast.core.errors import CannotEstimate
from vramcast.jobs.ranks import World
from vramcast.tracer.format.ledger import CallHandling, Code, Entry
from vramcast.tracer.format.serving import scarcity
from vramcast.tracer.format.trace import COURSE, RANKS, SERVING
from vramcast.tracer.protocol.job_result import Result


def has_failed(result: Result) -> bool:
    """Return whether a rank has no usable peaks: it failed, or it ended early without memory on its card."""
    return result.status == "error" or bool(result.ended and not reserved_bytes(result))


def fullest_rank(results: Mapping[int, Result], world: World) -> Result:
    """Return the result of the rank that reserved most, with the peaks of all in its trace's header.

    A failed rank is the answer; so is one with a full card.

    Args:
        results: Results by the rank's number, in the order of their runs.
        world: All ranks.
    """
    if world.size == 1:
        return results[0]
    number, worst = next(((number, result) for number, result in results.items() if has_failed(result)), (-1, None))
    if worst is not None:
        why = f"{worst.message or f'The job ended early: {worst.ended}'} (rank {number} of {world.size})"
        return replace(worst, status="error", error=worst.error or CannotEstimate.__name__, message=why)
    full = {number: result for number, result in results.items() if result.status == "oom"}
    number, most = max((full or results).items(), key=lambda item: (scarcity(item[1].trace), reserved_bytes(item[1])))
    if most.trace is None:
        return most
    traces = {one: result.trace for one, result in results.items() if result.trace is not None}
    peaks = [[one, *(trace.header["peaks"][name] for name in ("allocated", "reserved"))] for one, trace in traces.items()]
    facts = {"world_size": world.size, "per_node": world.local_size, "fullest": number, "peaks": peaks}
    if most.trace.header.get(SERVING):
        facts["serving"] = {str(one): trace.header.get(SERVING) for one, trace in traces.items()}
    strangers = _strangers(results, world)
    if strangers and number % world.local_size == 0:
        facts["strangers"] = strangers
    header = {**most.trace.header, RANKS: facts}
    ended = [f"{result.ended} (rank {one} of {world.size})" for one, result in results.items() if result.ended]
    if ended:
        header[COURSE] = {**header[COURSE], "ended": ended[0]}
    trace = replace(most.trace, header=header)
    idle = [one for one, _, reserved in peaks if not reserved]
    notes = list(most.notes)
    if idle and reserved_bytes(most):
        notes.append(f"rank {idle[0]} requested no memory on its own card: does the script choose it by LOCAL_RANK?")
    if strangers:
        notes.append(
            f"ranks of other cards have a context on the first card of their machine ({strangers} there): the script touches "
            "CUDA before it chooses its card"
        )
    guessed = sum((Counter(result.answers) for result in results.values()), Counter[str]())
    assumed = [Entry.of(CallHandling.ASSUMED, Code.ABSENT, hits, name=what) for what, hits in sorted(guessed.items())]
    others = [(one, trace) for one, trace in traces.items() if one != number]
    beside = min(others, key=lambda other: reserved_bytes(results[other[0]]), default=None)
    return replace(most, trace=trace, notes=tuple(notes), ledger=[*most.ledger, *assumed], beside=beside)


def _strangers(results: Mapping[int, Result], world: World) -> int:
    """Return how many other ranks have a context on a machine's first card: all of them, if a traced one has."""
    first = Entry(CallHandling.CONTEXT, "0", 1)
    others = (result for number, result in results.items() if number % world.local_size)
    return world.local_size - 1 if any(first in result.ledger for result in others) else 0


def reserved_bytes(result: Result) -> int:
    """Return the maximum that a process's allocator held."""
    return int(result.trace.header["peaks"]["reserved"]) if result.trace is not None else 0
