"""One trace under many conditions: allocator settings x cards, and the smallest card that the job runs on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from vramcast.core.brief import brief
from vramcast.core.errors import UsageError
from vramcast.core.units import gib
from vramcast.simulator.card import PAGE_BYTES, UNLIMITED_BYTES, Card
from vramcast.simulator.engine import play
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.settings import Settings
from vramcast.simulator.simulation import OutOfMemory, simulate
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.processes.thread_pool import n_processors

_N_PROBES: Final = 32  # arbitrary: cards to try between the smallest and one that is never full


@brief
@dataclass(frozen=True, slots=True)
class Case:
    """A trace under one setting on one card; sizes in bytes.

    Attributes:
        settings: Like a value of PYTORCH_CUDA_ALLOC_CONF; "default" for torch's own.
        card_bytes: The card's size; None: an unlimited card.
        allocated: Peak of live blocks, up to where memory runs out.
        reserved: Peak of segments.
        fragmentation: Bytes reserved but not allocated, at the peak of allocated bytes.
        retries: How often all unused segments were released to make room.
        out_of_memory: Where the job ends; None: it runs to its end.
        min_feasible: The smallest card on which the job runs under these settings; equal in all rows with these settings.
    """

    settings: str
    card_bytes: int | None
    allocated: int
    reserved: int
    fragmentation: int
    retries: int
    out_of_memory: OutOfMemory | None
    min_feasible: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the case as JSON."""
        return {
            "settings": self.settings,
            "card_bytes": self.card_bytes,
            "runs": self.out_of_memory is None,
            "peaks": {"allocated": self.allocated, "reserved": self.reserved, "min_feasible": self.min_feasible},
            "fragmentation": self.fragmentation,
            "retries": self.retries,
            "out_of_memory": None if self.out_of_memory is None else asdict(self.out_of_memory),
        }


def what_if(
    trace: Trace, settings: Iterable[Settings], cards: Sequence[int | None] = (None,), *, n_jobs: int = -1
) -> list[Case]:
    """Simulate `trace` under each setting on each card; return the cases in that order.

    Args:
        trace: A job's trace. Its CONTEXT rows take their part of every card.
        settings: Allocator settings.
        cards: Sizes in bytes; None: an unlimited card.
        n_jobs: Threads; -1: the number of processors. The compiled simulator runs outside Python's lock.

    Returns:
        The cases, by setting and then by card; sizes in bytes.

    Raises:
        UsageError: The trace has more streams than the simulator supports.

    Example:
        >>> settings = [vramcast.Settings(), vramcast.Settings(expandable_segments=True)]
        >>> cases = vramcast.what_if(small, settings, [1 << 20, 1 << 30])
        >>> [(case.card_bytes, case.out_of_memory is None) for case in cases]
        [(1048576, False), (1073741824, True), (1048576, False), (1073741824, True)]
    """
    requests = Requests.of(trace)
    chosen = list(settings)
    with ThreadPoolExecutor(n_processors() if n_jobs == -1 else n_jobs) as threads:
        smallest = threads.map(lambda setting: min_feasible(requests, setting), chosen)
        asked = [(setting, card, least) for setting, least in zip(chosen, smallest, strict=True) for card in cards]
        return list(threads.map(lambda one: _case(trace, requests, *one), asked))


def _case(trace: Trace, requests: Requests, settings: Settings, card_bytes: int | None, least: int | None) -> Case:
    card = Card() if card_bytes is None else Card(card_bytes)
    found = simulate(trace, settings, card, requests=requests)
    outcome = found.outcome
    assert outcome.reserved_bytes is not None
    assert outcome.allocated_bytes is not None
    end = len(requests) if outcome.stopped_at is None else outcome.stopped_at
    fragmentation = 0
    if end:
        row = int(np.argmax(outcome.allocated_bytes[:end]))
        fragmentation = int(outcome.reserved_bytes[row] - outcome.allocated_bytes[row])
    return Case(
        str(settings), card_bytes, found.allocated, found.reserved, fragmentation, found.retries, found.out_of_memory, least
    )


def min_feasible(trace: Trace | Requests, settings: Settings | None = None) -> int | None:
    """Return the size in bytes of the smallest card on which the job runs to its end, with releases and retries.

    The answer comes from bisection and is exact to the byte: with one byte less, the job does not run. A larger card is not
    always better, because segments released under pressure change later placements. So some cards between the smallest and
    one that is never full are tried; where one fails, the answer lies above it.

    Args:
        trace: A job's trace, or its requests. CONTEXT rows take their part of the card.
        settings: Allocator settings; default: torch's.
    Returns:
        None if no card is large enough (a request beyond 16 TiB).
    """
    requests = Requests.of(trace) if isinstance(trace, Trace) else trace
    chosen = settings or Settings()

    takes = requests.size_bytes[requests.kind == RequestKind.TAKE]
    # What is taken at any time is a sum of these and whole pages, so that cards between two such sums are alike.
    remainders = np.unique(np.cumsum([0, *takes.tolist()]) % PAGE_BYTES)
    depends_on_bytes = chosen.memory_fraction < 1 or chosen.expandable_segments
    known: dict[bytes, bool] = {}

    def fits(total_bytes: int) -> bool:
        alike = (total_bytes - remainders) // (1 if depends_on_bytes else PAGE_BYTES)
        if (key := alike.tobytes()) not in known:
            known[key] = play(requests, chosen, Card(total_bytes), columns=False).stopped_at is None
        return known[key]

    without_end = play(requests, chosen, Card(), columns=False)
    if without_end.stopped_at is not None:
        return None
    taken_bytes = int(takes.sum())
    too_small = taken_bytes - 1
    enough = without_end.statistics.reserved.peak + taken_bytes
    while not fits(enough):  # with a memory fraction, the card must be larger than the job's share of it
        if enough > UNLIMITED_BYTES:
            return None
        too_small, enough = enough, 2 * enough + 1
    never_full = enough
    while True:
        while enough - too_small > 1:
            middle = (too_small + enough) // 2
            too_small, enough = (too_small, middle) if fits(middle) else (middle, enough)
        step = max((never_full - enough) // _N_PROBES, 1)
        sizes = range(enough + step, never_full, step)
        with ThreadPoolExecutor(n_processors()) as threads:  # the compiled simulator runs outside Python's lock
            failing = [size for size, is_enough in zip(sizes, threads.map(fits, sizes), strict=True) if not is_enough]
        if not failing:
            return enough
        too_small = failing[-1]
        enough = next(size for size in (*range(too_small + step, never_full, step), never_full) if fits(size))


def case_table(cases: Sequence[Case]) -> str:
    """Return the cases as a text table, one line each.

    Args:
        cases: The cases, as `what_if` returns them.

    Returns:
        The table; sizes have their unit, MiB or GiB.

    Raises:
        UsageError: There are no cases.

    Example:
        >>> print(vramcast.case_table(cases[1:2]))
        settings       card  allocated   reserved  fragments retries   smallest  ends
        default    1.00 GiB    0.0 MiB    2.0 MiB    2.0 MiB       0    2.0 MiB  runs
    """
    if not cases:
        raise UsageError("There is nothing to compare: give at least one setting and one card.")
    width = max(len("settings"), *(len(case.settings) for case in cases))
    heads = ("card", "allocated", "reserved", "fragments")
    lines = [f"{'settings':<{width}}" + "".join(f" {head:>10}" for head in heads) + f" {'retries':>7} {'smallest':>10}  ends"]
    for case in cases:
        card = "unlimited" if case.card_bytes is None else gib(case.card_bytes)
        least = "none" if case.min_feasible is None else gib(case.min_feasible)
        lines.append(
            f"{case.settings:<{width}} {card:>10} {gib(case.allocated):>10} {gib(case.reserved):>10} "
            f"{gib(case.fragmentation):>10} {case.retries:>7} {least:>10}  {_end(case.out_of_memory)}"
        )
    return "\n".join(lines)


def _end(end: OutOfMemory | None) -> str:
    return "runs" if end is None else f"out of memory: {end.place}, {gib(end.size_bytes)}"
