"""Whose turn it is: what several askers wait for goes round them, and a full queue keeps most of who has least in it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

from vramcast.core.errors import Overloaded

_RETRY_S: Final = 2  # arbitrary: a model takes about a second
T = TypeVar("T")


class Turns(Generic[T]):
    """Things which are lent to askers, one at a time.

    Args:
        things: All of them; each is free.
        most: How many may wait.
    """

    def __init__(self, things: list[T], most: int) -> None:
        self._free = deque(things)
        self._count = len(things)
        self._most = most
        self._waiting: OrderedDict[str, deque[asyncio.Future[T]]] = OrderedDict()  # by asker; the first one's turn is next

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    async def take(self, asker: str) -> T:
        """Return a thing once it is this asker's turn.

        Raises:
            Overloaded: too many wait, and no other asker has more in the queue. Or one with less came, and this is the last
                which the one with most had put there.
        """
        if self._free:  # then nobody waits
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
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # its turn came too late
                self.give(turn.result())
            elif turn in (turns := self._waiting.get(asker, deque())):
                turns.remove(turn)
                self._forget_empty(asker)
            raise

    def give(self, thing: T) -> None:
        """Give a thing back: it goes to the next asker's oldest question."""
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
