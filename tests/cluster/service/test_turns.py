"""The order of turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vramcast.cluster.service.turns import FairPool
from vramcast.core.errors import Overloaded


def run(use: Callable[[FairPool[int]], Awaitable[Any]], *, most: int = 8) -> Any:
    async def whole() -> Any:
        return await use(FairPool([0], most))

    return asyncio.run(whole())


async def queued(turns: FairPool[int], askers: str) -> list[asyncio.Task[int]]:
    tasks = []
    for asker in askers:
        tasks.append(asyncio.create_task(turns.take(asker)))
        await asyncio.sleep(0)
    return tasks


async def order(turns: FairPool[int], tasks: list[asyncio.Task[int]], askers: str) -> str:
    """Return the askers in the order in which they get the thing."""
    found = ""
    for _ in tasks:
        turns.give(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        new = [number for number, task in enumerate(tasks) if task.done() and number not in seen(found)]
        found += "".join(f"{number}," for number in new)
    return "".join(askers[number] for number in seen(found))


def seen(found: str) -> list[int]:
    return [int(word) for word in found.split(",") if word]


def test_turns_rotate_among_askers() -> None:
    async def use(turns: FairPool[int]) -> str:
        await turns.take("x")
        return await order(turns, await queued(turns, "aaaabbc"), "aaaabbc")

    assert run(use) == "abcabaa"


def test_full_queue_displaces_largest_share() -> None:
    async def use(turns: FairPool[int]) -> tuple[list[bool], str]:
        await turns.take("x")
        tasks = await queued(turns, "caaab")
        await asyncio.sleep(0)
        refused = [task.done() and isinstance(task.exception(), Overloaded) for task in tasks]
        with pytest.raises(Overloaded):
            await turns.take("a")
        left = [task for task in tasks if not task.done()]
        return refused, await order(turns, left, "caab")

    assert run(use, most=4) == ([False, False, False, True, False], "caba")


def test_full_queue_of_equal_shares_rejects() -> None:
    async def use(turns: FairPool[int]) -> int:
        await turns.take("x")
        tasks = await queued(turns, "abcd")
        for asker in "abcde":
            with pytest.raises(Overloaded) as refused:
                await turns.take(asker)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert turns.waiting == 0
        return refused.value.retry_after_s

    assert run(use, most=4) >= 1


def test_cancelled_turn_returns_thing() -> None:
    async def use(turns: FairPool[int]) -> None:
        await turns.take("x")
        before, late = await queued(turns, "ab")
        before.cancel()
        await asyncio.gather(before, return_exceptions=True)
        turns.give(0)
        late.cancel()  # its turn has come, but it has not run yet
        await asyncio.gather(late, return_exceptions=True)
        assert await asyncio.wait_for(turns.take("c"), 1) == 0

    run(use)
