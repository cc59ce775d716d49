"""Memory of a job with settings that need no plan: expandable segments, and one large block that is freed before it begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.settings import Settings
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.trace import Trace

# arbitrary: sizes of the first block, as multiples of the live peak
_FIRST: Final = (0.96, 0.98, 0.99, 1.0, 1.01, 1.02, 1.04, 1.06, 1.08)


@dataclass(frozen=True, slots=True)
class FreeOptions:
    """Reserved bytes of a job, simulated.

    Attributes:
        expandable_bytes: With expandable segments.
        one_block_bytes: With default settings, if `first_bytes` are requested and freed before the job.
        first_bytes: The size of that block for which the job takes the least.
    """

    expandable_bytes: int
    one_block_bytes: int
    first_bytes: int

    @property
    def least_bytes(self) -> int:
        """The better of the two."""
        return min(self.expandable_bytes, self.one_block_bytes)


def free_options(trace: Trace, settings: Settings | None = None) -> FreeOptions:
    """Return what the job takes with each option, by simulation of its requests.

    Args:
        trace: The job's trace.
        settings: Its allocator settings; default: torch's.
    """
    settings, requests, live_bytes = settings or Settings(), Requests.of(trace), trace.peak_live()[0]

    def reserved(asked: Requests, how: Settings) -> int:
        return simulate(trace, how, requests=asked, columns=False).reserved

    first = {int(live_bytes * share): 0 for share in _FIRST}
    taken = {size: reserved(_behind(size, requests), settings) for size in first}
    best = min(taken, key=lambda size: (taken[size], size))
    return FreeOptions(reserved(requests, replace(settings, expandable_segments=True)), taken[best], best)


def _behind(size_bytes: int, requests: Requests) -> Requests:
    """Return the requests behind one block of `size_bytes` that is requested and freed."""
    return replace(
        requests,
        kind=np.append(np.array([RequestKind.MALLOC, RequestKind.FREE], np.uint8), requests.kind),
        size_bytes=np.append([size_bytes, 0], requests.size_bytes),
        stream=np.append(np.zeros(2, np.int32), requests.stream),
        block=np.append([-1, 0], np.where(requests.block >= 0, requests.block + 2, -1)),
        source=np.append([-1, -1], requests.source),
    )
