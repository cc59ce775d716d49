"""The line of the user's code that allocated each live block, recorded while a loop is watched for kept memory.

The allocator keeps the Python stack of each live block. Blocks of a backward pass come from autograd's own threads, which
have no Python stack: their line is the one that called the backward pass.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from vramcast.tracer.format.trace import Action, Trace
from vramcast.tracer.program.loops import Loop
from vramcast.tracer.protocol.source_places import SourceLine, stack_of, users_place
from vramcast.tracer.recording.allocator_history import Account


class KeptBlocks:
    """Lines and live blocks of one job.

    Args:
        account: The history of its allocator, with stacks.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._backwards: list[tuple[int, str]] = []
        self._at = 0
        self._lines: dict[int, str] = {}

    def calls_backward(self) -> None:
        """Record that a backward pass begins here."""
        place = users_place(stack_of(sys._getframe(1)))
        self._backwards.append((self._account.position(), "" if place is None else str(place)))

    def look(self, loop: Loop) -> None:
        """Record the allocating line of each live block, and the number of steps of the loop."""
        self._at = self._account.position()
        self._lines = {}
        for address, frames in self._account.live_stacks():
            place = users_place(SourceLine(one["filename"], one["line"], one["name"]) for one in frames)
            self._lines[address] = "" if place is None else str(place)

    def facts(self, trace: Trace, row_of: Callable[[int], int]) -> list[list[Any]]:
        """Return (row of the request, line) of the blocks live at the last record, as JSON."""
        end = row_of(self._at)
        rows = np.flatnonzero(trace.action[:end] == Action.ALLOC)
        last = dict(zip(trace.address[rows].tolist(), rows.tolist(), strict=True))
        begins = [row_of(at) for at, _ in self._backwards]
        found = []
        for address, line in self._lines.items():
            row = last.get(address)
            if row is None:
                continue
            backward = bisect.bisect_right(begins, row) - 1
            found.append([row, line or (self._backwards[backward][1] if backward >= 0 else "")])
        return sorted(found)
