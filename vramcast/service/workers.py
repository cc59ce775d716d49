"""Warm worker processes, each with a limit of time and of memory: who exceeds one is ended, and another takes its place."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psutil

from vramcast.core.errors import Overloaded, TimeLimit, WorkerError
from vramcast.core.units import gib

_WATCH_S: Final = 0.25  # arbitrary: how often memory is looked at
_LONGEST_ANSWER: Final = 64 << 20  # arbitrary: bytes of a line; a thousand ranks are about one MiB
_RETRY_S: Final = 2  # arbitrary: a model takes about a second
_READ_BYTES: Final = 1 << 16  # spec: Linux, what a pipe holds
_LONGEST_EVENT: Final = 4096  # arbitrary: bytes of a line that a worker says
_MOST_EVENTS: Final = 200  # arbitrary: lines of one question; a job may print without end
_LOG: Final = logging.getLogger(__name__)


class UnexpectedError(Exception):
    """The traceback of an error in a worker that was no answer; the operator's log has it, and no client."""


@dataclass(eq=False)
class Workers:
    """A pool of processes which answer questions.

    Attributes:
        command: Which starts one: it answers as `vramcast.service.worker_main` does.
        count: How many.
        queue: How many questions may wait for one of them.
        time_s: Of one job, from its beginning in a worker.
        memory_bytes: Of one job: resident memory of the worker and all that it started, what they share counted for each.
        is_fresh: Each question has a process of its own, which ends with it.
    """

    command: Sequence[str]
    count: int
    queue: int
    time_s: float
    memory_bytes: int
    is_fresh: bool = False

    def __post_init__(self) -> None:
        self._free: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()
        self._all: dict[asyncio.subprocess.Process, asyncio.Task[None]] = {}  # and what relays their words
        self._may_say: dict[int, int] = {}  # by process id: lines that are logged yet
        self.waiting = 0
        self.replaced = 0

    async def start(self) -> None:
        """Start the processes."""
        for _ in range(self.count):
            self._free.put_nowait(await self._started())

    async def stop(self) -> None:
        """End them, and all that they started."""
        for process in tuple(self._all):
            await self._end(process)

    async def ask(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a question's values.

        Raises:
            Overloaded: too many others wait.
            WorkerError: it took too much, or its process died; TimeLimit: it took too long.
        """
        if self.waiting >= self.queue:
            raise Overloaded(self.waiting, max(_RETRY_S, round(_RETRY_S * self.waiting / self.count)))
        self.waiting += 1
        try:
            process = await self._free.get()
        finally:
            self.waiting -= 1
        if process.returncode is not None:  # it died while it had nothing to do: the question is not to blame
            _LOG.warning("worker %d is replaced: it died while it had nothing to do", process.pid)
            self.replaced += 1
            await self._end(process)
            process = await self._started()
        try:
            found = await self._answer(process, values)
        except BaseException as error:  # cancelled too: what it is at belongs to nobody any more
            _LOG.warning("worker %d is replaced: %s", process.pid, error or type(error).__name__)
            self.replaced += 1
            await self._replace(process)
            raise
        if self.is_fresh:
            await self._replace(process)
        else:
            self._free.put_nowait(process)
        return found

    async def _replace(self, process: asyncio.subprocess.Process) -> None:
        await self._end(process)
        self._free.put_nowait(await self._started())

    async def _answer(self, process: asyncio.subprocess.Process, values: dict[str, Any]) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        self._may_say[process.pid] = _MOST_EVENTS
        watched = asyncio.create_task(self._memory_exceeded(process.pid))
        try:
            process.stdin.write(json.dumps(values).encode() + b"\n")
            await process.stdin.drain()
            line = asyncio.create_task(process.stdout.readline())
            done, _ = await asyncio.wait({line, watched}, timeout=self.time_s, return_when=asyncio.FIRST_COMPLETED)
            if watched in done:
                raise WorkerError(f"The job took more than {gib(self.memory_bytes)} of main memory here (--job-memory).")
            if line not in done:
                raise TimeLimit(f"The job did not end within {self.time_s:g} s (--job-timeout).")
            if not (text := line.result()):
                raise WorkerError("The process which traced the job died of it.")
            found: dict[str, Any] = json.loads(text)
            if traceback := found.pop("traceback", None):
                _LOG.error("worker %d: unexpected error", process.pid, exc_info=UnexpectedError(traceback))
            return found
        except (ConnectionError, ValueError) as error:
            raise WorkerError(f"The process which traced the job died of it ({error}).") from None
        finally:
            watched.cancel()

    async def _memory_exceeded(self, pid: int) -> None:
        """Return once a worker and what it started hold more than they may."""
        while await asyncio.to_thread(_resident_bytes, pid) <= self.memory_bytes:
            await asyncio.sleep(_WATCH_S)

    async def _started(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LONGEST_ANSWER,
        )
        self._may_say[process.pid] = _MOST_EVENTS
        self._all[process] = asyncio.create_task(self._relay(process))
        return process

    async def _relay(self, process: asyncio.subprocess.Process) -> None:
        """Write what a worker says on stderr into the operator's log, until it ends."""
        assert process.stderr is not None
        rest = b""
        while said := await process.stderr.read(_READ_BYTES):
            left = self._may_say[process.pid]
            *lines, rest = (rest + said).split(b"\n") if left else [b""]
            if len(rest) > _LONGEST_EVENT:
                lines, rest = [*lines, rest], b""
            events = [line[:_LONGEST_EVENT].decode(errors="replace") for line in lines if line][:left]
            for event in events:
                _LOG.info("worker %d: %s", process.pid, event)
            self._may_say[process.pid] = left - len(events)
            if 0 < left == len(events):
                _LOG.info("worker %d: what else it says of this question is left out", process.pid)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        for pid in (*_children(process.pid), process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.wait()
        if relay := self._all.pop(process, None):
            await asyncio.wait({relay}, timeout=_WATCH_S)  # for its last words; who escaped may still hold the pipe
            relay.cancel()
        self._may_say.pop(process.pid, None)


def _children(pid: int) -> list[int]:
    """Return all which a process started, and those which they did."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _resident_bytes(pid: int) -> int:
    total_bytes = 0
    for one in (pid, *_children(pid)):
        try:
            total_bytes += psutil.Process(one).memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total_bytes
