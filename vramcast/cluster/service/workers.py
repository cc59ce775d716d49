"""Warm worker processes, each with limits of time and memory: a worker that exceeds one is ended and replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vramcast.cluster.service.control_group import ControlGroup
from vramcast.cluster.service.turns import FairPool
from vramcast.cluster.service.worker_answer import LONGEST, read_answer
from vramcast.core.errors import TimeLimit, WorkerError
from vramcast.core.process_tree import descendants, held_bytes, is_active
from vramcast.core.units import gib

_WATCH_S: Final = 0.25  # arbitrary: interval of memory checks
_LOOK_S, _END_S = 0.02, 5.0  # arbitrary: interval and duration of the wait for an empty control group
_READ_BYTES: Final = 1 << 16  # spec: Linux, the capacity of a pipe
_LONGEST_EVENT: Final = 4096  # arbitrary: bytes of a worker's log line
_MOST_EVENTS: Final = 200  # arbitrary: log lines per question; a job may print without end
_LOG: Final = logging.getLogger(__name__)


class UnexpectedError(Exception):
    """The traceback of an error in a worker that gave no answer; it goes to the operator's log, never to a client."""


def _send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclass(eq=False, slots=True)
class WorkerSlot:
    """The place of one worker after another.

    Attributes:
        command: Starts a worker, which answers like `vramcast.cluster.service.worker_main`.
        group: Limits its memory; None: the pool itself checks the memory of the worker and of all that it started.
        in_memory: Folders of the worker's root whose files are in memory, and count.
    """

    command: Sequence[str]
    group: ControlGroup | None = None
    in_memory: Sequence[str] = ()
    process: asyncio.subprocess.Process | None = field(default=None, init=False)
    relay: asyncio.Task[None] | None = field(default=None, init=False)  # relays its stderr
    folder: str = field(default="", init=False)  # for its temporary files
    may_say: int = field(default=_MOST_EVENTS, init=False)  # log lines left for this question

    async def _stop(self) -> None:
        """Stop the worker, so that it starts no process that a list of its processes would miss."""
        assert self.process is not None
        _send(signal.SIGSTOP, [self.process.pid])
        until = time.monotonic() + _END_S
        while is_active(self.process.pid) and time.monotonic() < until:
            await asyncio.sleep(0)

    async def kill(self) -> None:
        """Kill the worker and all that it started, and wait until they have ended."""
        if self.process is not None:
            await self._stop()
            _send(signal.SIGKILL, [*descendants(self.process.pid), self.process.pid])
            with contextlib.suppress(TimeoutError):  # an escaped process may hold its pipes
                await asyncio.wait_for(self.process.wait(), _END_S)
        until = time.monotonic() + _END_S
        while self.group and (left := self.group.processes()) and time.monotonic() < until:
            _send(signal.SIGKILL, left)
            await asyncio.sleep(_LOOK_S)


class Workers:
    """A pool of processes that answer questions.

    Args:
        places: One per worker.
        queue: Maximum number of questions that wait for a worker.
        time_s: Time limit of one job, from its start in a worker.
        memory_bytes: Memory limit of one job: of the worker and all that it started, with shared memory counted for each.
        is_fresh: Whether each question gets a new process.
    """

    def __init__(
        self, places: Sequence[WorkerSlot], queue: int, time_s: float, memory_bytes: int, *, is_fresh: bool = False
    ) -> None:
        self._places = places
        self._turns = FairPool(list(places), queue)
        self._time_s = time_s
        self._memory_bytes = memory_bytes
        self._is_fresh = is_fresh
        self._is_stopped = False
        self.replaced = 0

    @property
    def waiting(self) -> int:
        """The number of questions that wait for a worker."""
        return self._turns.waiting

    async def start(self) -> None:
        """Start the processes."""
        self._is_stopped = False
        for place in self._places:
            await self._start(place)

    async def stop(self) -> None:
        """End the processes and all that they started; waiting questions get an error."""
        self._is_stopped = True
        for place in self._places:
            await self._end(place)
            if place.group is not None:
                place.group.remove()

    async def ask(self, values: dict[str, Any], asker: str = "") -> dict[str, Any]:
        """Return the answer to a question's values.

        Raises:
            Overloaded: Too many others wait.
            WorkerError: It took too much memory, or its process died or could not be started; TimeLimit: it took too long.
        """
        place = await self._turns.take(asker)
        is_at_an_end = True
        try:
            await self._make_ready(place)
            found = await self._answer(place, values)
            is_at_an_end = self._is_fresh
            return found
        except BaseException as error:  # cancellation too: nothing needs the work any more
            self._note_replaced(place, error or type(error).__name__)
            raise
        finally:
            if is_at_an_end:
                await self._replace(place)
            self._turns.give(place)

    async def _make_ready(self, place: WorkerSlot) -> None:
        """Ensure that a place has a living worker; one that died while idle is replaced at no cost to the question."""
        if place.process is not None and place.process.returncode is None:
            return
        if place.process is not None:
            self._note_replaced(place, "it died while idle")
        await self._end(place)
        try:
            await self._start(place)
        except OSError as error:
            raise WorkerError(f"No process can be started for the job ({error}): try again later.") from None

    def _note_replaced(self, place: WorkerSlot, why: object) -> None:
        if place.process is not None:
            _LOG.warning("worker %d is replaced: %s", place.process.pid, why)
            self.replaced += 1

    async def _replace(self, place: WorkerSlot) -> None:
        await self._end(place)
        try:
            await self._start(place)
        except OSError as error:  # retried by the next question
            _LOG.warning("no worker can be started: %s", error)

    async def _answer(self, place: WorkerSlot, values: dict[str, Any]) -> dict[str, Any]:
        assert place.process is not None
        assert place.process.stdin is not None
        assert place.process.stdout is not None
        place.may_say = _MOST_EVENTS
        too_much = WorkerError(
            f"The job took more than {gib(self._memory_bytes)} of main memory, the limit here (--job-memory): make it smaller."
        )
        kills = place.group.kills() if place.group else 0
        watched = asyncio.create_task(self._memory_exceeded(place, kills))
        try:
            place.process.stdin.write(json.dumps(values).encode() + b"\n")
            await place.process.stdin.drain()
            line = asyncio.create_task(place.process.stdout.readline())
            done, _ = await asyncio.wait({line, watched}, timeout=self._time_s, return_when=asyncio.FIRST_COMPLETED)
            if watched in done or (place.group and place.group.kills() > kills):
                raise too_much
            if line not in done:
                raise TimeLimit(
                    f"The job did not finish within {self._time_s:g} s, the limit here (--job-timeout): make it shorter."
                )
            if not (text := line.result()):
                raise WorkerError("The process that traced the job crashed.")
            found = read_answer(text)
            if traceback := found.pop("traceback", None):
                _LOG.error("worker %d: unexpected error", place.process.pid, exc_info=UnexpectedError(traceback))
            return found
        except (ConnectionError, ValueError) as error:
            raise WorkerError(f"The process that traced the job crashed ({error}).") from None
        finally:
            watched.cancel()

    async def _memory_exceeded(self, place: WorkerSlot, kills: int) -> None:
        """Return once a worker and all that it started exceed their memory, or the kernel has killed one of them for that."""
        assert place.process is not None
        while True:
            if place.group is not None:
                if place.group.kills() > kills:
                    return
            elif await asyncio.to_thread(held_bytes, place.process.pid, place.in_memory) > self._memory_bytes:
                return
            await asyncio.sleep(_WATCH_S)

    async def _start(self, place: WorkerSlot) -> None:
        if self._is_stopped:
            raise InterruptedError("the service is stopping")
        place.folder = tempfile.mkdtemp(prefix="vramcast-")
        place.process = await asyncio.create_subprocess_exec(
            *place.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=LONGEST,
            env={**os.environ, "TMPDIR": place.folder},
        )
        place.may_say = _MOST_EVENTS
        place.relay = asyncio.create_task(self._relay(place, place.process))

    async def _relay(self, place: WorkerSlot, process: asyncio.subprocess.Process) -> None:
        """Copy a worker's stderr to the operator's log until it ends."""
        assert process.stderr is not None
        rest = b""
        while said := await process.stderr.read(_READ_BYTES):
            left = place.may_say
            *lines, rest = (rest + said).split(b"\n") if left else [b""]
            if len(rest) > _LONGEST_EVENT:
                lines, rest = [*lines, rest], b""
            events = [line[:_LONGEST_EVENT].decode(errors="replace") for line in lines if line][:left]
            for event in events:
                _LOG.info("worker %d: %s", process.pid, event)
            place.may_say = left - len(events)
            if 0 < left == len(events):
                _LOG.info("worker %d: further output for this question is omitted", process.pid)

    async def _end(self, place: WorkerSlot) -> None:
        """End a worker and all that it started, and remove its temporary files."""
        await place.kill()
        if place.relay is not None:
            # for its last output; an escaped process may still hold the pipe
            await asyncio.wait({place.relay}, timeout=_WATCH_S)
            place.relay.cancel()
        if place.folder:
            await asyncio.to_thread(shutil.rmtree, place.folder, ignore_errors=True)
        place.process, place.relay, place.folder = None, None, ""
