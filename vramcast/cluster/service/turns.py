"""A fair queue: turns rotate among the askers, and a full queue favors the asker with the fewest entries."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

from vramcast.core.errors import Overloaded

_RETRY_S: Final = 2  # arbitrary: a model takes about a second
T = TypeVar("T")


class FairPool(Generic[T]):
    """Things that are lent to askers, one at a time.

    Args:
        things: All things, each of them free.
        most: Maximum number of waiting requests.
    """

    def __init__(self, things: list[T], most: int) -> None:
        self._free = deque(things)
        self._count = len(things)
        self._most = most
        self._waiting: OrderedDict[str, deque[asyncio.Future[T]]] = OrderedDict()  # by asker; the first asker's turn is next

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return sum(map(len, self._waiting.values()))

    async def take(self, asker: str) -> T:
        """Return a thing once it is this asker's turn.

        Raises:
            Overloaded: The queue is full, and no other asker has more entries; or an asker with fewer entries displaced
                this one, the latest of the asker with the most.
        """
        if self._free:  # then no one waits
            return self._free.popleft()
        own = self._waiting.get(asker, ())
        if self.waiting >= self._most:
            longest = max(self._waiting.values(), key=len)
            if len(longest) <= len(own) + 1:
                raise self._overloaded()
            longest.pop().set_exception(self._overloaded())
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # it got its turn too late
                self.give(turn.result())
            elif turn in (turns := self._waiting.get(asker, deque())):
                turns.remove(turn)
                self._forget_empty(asker)
            raise

    def give(self, thing: T) -> None:
        """Return a thing to the pool: the next asker's oldest request gets it."""
        while self._waiting:
            asker, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            self._waiting.move_to_end(asker)
            self._forget_empty(asker)
            if not turn.done():
                turn.set_result(thing)
                return
        self._free.append(thing)

    def _forget_empty(self, asker: str) -> None:
        if not self._waiting[asker]:
            del self._waiting[asker]

    def _overloaded(self) -> Overloaded:
        waiting = self.waiting
        return Overloaded(waiting, max(_RETRY_S, round(_RETRY_S * waiting / self._count)))
