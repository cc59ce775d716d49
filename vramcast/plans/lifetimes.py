"""Birth, death and size of each block of a trace: everything that a memory planner needs from it.

    time    0   1   2   3   4   5 = length
    row     A0  A1  F0  A3  F1           A: ALLOC, F: FREE_COMPLETED
    block 0 [#######)                    birth 0, death 2
    block 1     [###########)            birth 1, death 4
    block 2             [#######)        birth 3, death 5: it outlives the trace

Time is the row of the trace. A block lives at t if birth <= t < death. Blocks older than the trace are not included:
`vramcast.simulator.simulation.Simulation.replayed` makes them the first rows of a trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vramcast.core.brief import brief
from vramcast.tracer.format.trace import Action, Trace


@brief
@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """Blocks in order of birth, one entry each. Two conflict, and need separate places, if max(birth) < min(death).

    Attributes:
        row: int64, row of the ALLOC in the trace.
        size_bytes: int64, rounded up to 512 B, the alignment of every plan for CUDA.
        birth: int64, time at which the block begins: its ALLOC row.
        death: int64, row of its FREE_COMPLETED; `length` if it outlives the trace.
        length: Rows of the trace.
    """

    row: npt.NDArray[np.int64]
    size_bytes: npt.NDArray[np.int64]
    birth: npt.NDArray[np.int64]
    death: npt.NDArray[np.int64]
    length: int

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def of(cls, trace: Trace) -> Lifetimes:
        """Return the lifetimes of all blocks that begin in `trace`."""
        row = np.flatnonzero(trace.action == Action.ALLOC).astype(np.int64)
        return cls(row, trace.rounded_bytes()[row], row.copy(), trace.ends()[row], len(trace))

    def live(self) -> npt.NDArray[np.int64]:
        """Return the live bytes by time, int64[length + 1]; the last value, as at `length - 1`, is what outlives the trace."""
        change = np.zeros(self.length + 1, np.int64)
        np.add.at(change, self.birth, self.size_bytes)
        ends = self.death < self.length
        np.subtract.at(change, self.death[ends], self.size_bytes[ends])
        return np.cumsum(change)

    def peak_live(self) -> tuple[int, int]:
        """Return the peak of live bytes and the first time at which it is reached; no pool without swapping is smaller."""
        live = self.live()
        time = int(np.argmax(live))
        return int(live[time]), time

    def only(self, blocks: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Lifetimes:
        """Return some of the blocks, selected by number (ascending) or mask."""
        return Lifetimes(self.row[blocks], self.size_bytes[blocks], self.birth[blocks], self.death[blocks], self.length)
