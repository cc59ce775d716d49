"""Extrapolation of a loop: its last requests are repeated until the card is full.

    step 31   A 4000, A 512, F -2          the last two steps are equal, so the next ones are assumed to be too
    step 32   A 4000, A 512, F -2
    step 33   A 4000, A 512, F -2          each step leaves a block: in some step the allocator finds no memory
    ...

Steps that alternate in turns of two or more (every fourth one evaluates) are repeated together. If no turn repeats (for
example, because batch sizes vary), and behind the last request played, the loop grows linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.simulator.card import Card
from vramcast.simulator.engine import play
from vramcast.simulator.requests import Requests
from vramcast.simulator.settings import Settings
from vramcast.tracer.format.trace import Trace

_MOST_REQUESTS: Final = 1_000_000  # arbitrary: half a second
_LONGEST_TURN: Final = 8  # arbitrary: steps


@dataclass(frozen=True, slots=True)
class RepeatedSteps:
    """A loop to be continued.

    Attributes:
        requests: The requests up to the end of its last step.
        borders: Ends of its steps, as positions in the requests.
        turn: Number of last steps that make a turn; 0: none do.
        settings: Allocator settings.
        bytes_per_step: Growth per step where no turn is like another.
    """

    requests: Requests
    borders: npt.NDArray[np.int64]
    turn: int
    settings: Settings
    bytes_per_step: int

    @classmethod
    def of(cls, trace: Trace, ends: Sequence[int], settings: Settings, *, bytes_per_step: int) -> RepeatedSteps:
        """Return the loop of a trace.

        Args:
            trace: A trace without the memory that the process takes outside the allocator.
            ends: Rows before which its steps ended.
            settings: See the class.
            bytes_per_step: See the class.
        """
        requests = Requests.of(trace)
        borders = np.searchsorted(requests.source, np.array(ends))
        seen = _first(requests, int(borders[-1]))
        return cls(seen, borders, _turn(seen, borders), settings, bytes_per_step)

    @property
    def _period(self) -> int:
        return int(self.borders[-1] - self.borders[-1 - self.turn])

    def _longer(self, n_turns: int | None = None) -> tuple[Requests, int]:
        """Return the requests extended by `n_turns` turns, up to the limit of requests to play, and the number of turns
        added.
        """
        most = max((_MOST_REQUESTS - len(self.requests)) // self._period, 0) if self.turn else 0
        n_turns = most if n_turns is None else min(n_turns, most)
        return (_repeated(self.requests, self._period, n_turns) if n_turns else self.requests), n_turns

    def full_at(self, card_bytes: int, context_bytes: int) -> int:
        """Return the step, from 1, in which the allocator runs out of memory on a card.

        Args:
            card_bytes: Size of the card.
            context_bytes: Bytes that the process takes outside the allocator.
        """
        asked, n_turns = self._longer()
        card = Card(max(card_bytes, context_bytes), context_bytes)
        found = play(asked, self.settings, card, columns=False)
        n_seen, borders = len(self.borders), self.borders
        if found.stopped_at is None:
            room_bytes = max(card_bytes - context_bytes - found.statistics.reserved.peak, 0)
            return n_seen + n_turns * self.turn + room_bytes // self.bytes_per_step + 1
        if found.stopped_at < len(self.requests):
            return int(np.searchsorted(borders, found.stopped_at, side="right")) + 1
        turns, place = divmod(found.stopped_at - len(self.requests), self._period)
        begins = borders[-1 - self.turn :] - borders[-1 - self.turn]
        return n_seen + turns * self.turn + int(np.searchsorted(begins, place, side="right"))

    def reserved_after(self, n_steps: int) -> int:
        """Return the allocator's peak of reserved bytes up to the end of step `n_steps`."""
        left = max(n_steps - len(self.borders), 0)
        asked, n_turns = self._longer(-(-left // self.turn) if self.turn else 0)
        found = play(asked, self.settings, Card(), columns=False)
        return found.statistics.reserved.peak + max(left - n_turns * self.turn, 0) * self.bytes_per_step


def _first(requests: Requests, n: int) -> Requests:
    return replace(
        requests, kind=requests.kind[:n], size_bytes=requests.size_bytes[:n], stream=requests.stream[:n],
        block=requests.block[:n], source=requests.source[:n],
    )  # fmt: skip


def _turn(requests: Requests, borders: npt.NDArray[np.int64]) -> int:
    """Return the number of last steps that request the same as those before them; 0: none do."""
    distance = np.where(requests.block >= 0, np.arange(len(requests)) - requests.block, 0)
    for turn in range(1, min(_LONGEST_TURN, (len(borders) - 1) // 2) + 1):
        before, begin, end = (int(borders[-1 - n]) for n in (2 * turn, turn, 0))
        if end - begin == begin - before > 0 and all(
            np.array_equal(column[before:begin], column[begin:end])
            for column in (requests.kind, requests.size_bytes, requests.stream, distance)
        ):
            return turn
    return 0


def _repeated(requests: Requests, period: int, n: int) -> Requests:
    """Return the requests with the last `period` of them repeated `n` more times."""
    block = requests.block[-period:]
    later = np.arange(1, n + 1)[:, None] * period
    blocks = np.where(block >= 0, block + later, -1).reshape(-1)

    def more(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.concatenate([column, np.tile(column[-period:], n)])

    return replace(
        requests, kind=more(requests.kind), size_bytes=more(requests.size_bytes), stream=more(requests.stream),
        block=np.concatenate([requests.block, blocks]), source=more(requests.source),
    )  # fmt: skip
