"""Warm worker processes, each with a limit of time and of memory: who exceeds one is ended, and another takes its place."""

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

from vramcast.core.errors import TimeLimit, WorkerError
from vramcast.core.process_tree import descendants, held_bytes, is_active
from vramcast.core.units import gib
from vramcast.service.control_group import ControlGroup
from vramcast.service.turns import Turns
from vramcast.service.worker_answer import LONGEST, read_answer

_WATCH_S: Final = 0.25  # arbitrary: how often memory is looked at
_LOOK_S, _END_S = 0.02, 5.0  # arbitrary: how often one looks whether a control group is empty, and how long
_READ_BYTES: Final = 1 << 16  # spec: Linux, what a pipe holds
_LONGEST_EVENT: Final = 4096  # arbitrary: bytes of a line that a worker says
_MOST_EVENTS: Final = 200  # arbitrary: lines of one question; a job may print without end
_LOG: Final = logging.getLogger(__name__)


class UnexpectedError(Exception):
    """The traceback of an error in a worker that was no answer; the operator's log has it, and no client."""


def _send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclass(eq=False, slots=True)
class Place:
    """Where one worker after the other runs.

    Attributes:
        command: Which starts one: it answers as `vramcast.service.worker_main` does.
        group: Limits its memory; None: the pool looks itself what it and all that it started hold.
        in_memory: Folders of the worker's root whose files are in memory, and count.
    """

    command: Sequence[str]
    group: ControlGroup | None = None
    in_memory: Sequence[str] = ()
    process: asyncio.subprocess.Process | None = field(default=None, init=False)
    relay: asyncio.Task[None] | None = field(default=None, init=False)  # of its words
    folder: str = field(default="", init=False)  # for its temporary files
    may_say: int = field(default=_MOST_EVENTS, init=False)  # lines that are logged yet

    async def _stop(self) -> None:
        """Stop the worker where it is: then it starts nothing that a list of what it started would lack."""
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
            with contextlib.suppress(TimeoutError):  # who escaped may hold its pipes
                await asyncio.wait_for(self.process.wait(), _END_S)
        until = time.monotonic() + _END_S
        while self.group and (left := self.group.processes()) and time.monotonic() < until:
            _send(signal.SIGKILL, left)
            await asyncio.sleep(_LOOK_S)


class Workers:
    """A pool of processes which answer questions.

    Args:
        places: One a worker.
        queue: How many questions may wait for one of them.
        time_s: Of one job, from its beginning in a worker.
        memory_bytes: Of one job: what the worker and all that it started hold, what they share counted for each.
        is_fresh: Each question has a process of its own, which ends with it.
    """

    def __init__(
        self, places: Sequence[Place], queue: int, time_s: float, memory_bytes: int, *, is_fresh: bool = False
    ) -> None:
        self._places = places
        self._turns = Turns(list(places), queue)
        self._time_s = time_s
        self._memory_bytes = memory_bytes
        self._is_fresh = is_fresh
        self._is_stopped = False
        self.replaced = 0

    @property
    def waiting(self) -> int:
        """How many questions wait for a worker."""
        return self._turns.waiting

    async def start(self) -> None:
        """Start the processes."""
        self._is_stopped = False
        for place in self._places:
            await self._start(place)

    async def stop(self) -> None:
        """End them, and all that they started; who still waits gets an error."""
        self._is_stopped = True
        for place in self._places:
            await self._end(place)
            if place.group is not None:
                place.group.remove()

    async def ask(self, values: dict[str, Any], asker: str = "") -> dict[str, Any]:
        """Return the answer to a question's values.

        Raises:
            Overloaded: too many others wait.
            WorkerError: it took too much, or its process died or could not be started; TimeLimit: it took too long.
        """
        place = await self._turns.take(asker)
        is_at_an_end = True
        try:
            await self._make_ready(place)
            found = await self._answer(place, values)
            is_at_an_end = self._is_fresh
            return found
        except BaseException as error:  # cancelled too: what it is at belongs to nobody any more
            self._note_replaced(place, error or type(error).__name__)
            raise
        finally:
            if is_at_an_end:
                await self._replace(place)
            self._turns.give(place)

    async def _make_ready(self, place: Place) -> None:
        """See to it that a place has a worker which lives; one which died had nothing to do: the question is not to blame."""
        if place.process is not None and place.process.returncode is None:
            return
        if place.process is not None:
            self._note_replaced(place, "it died while it had nothing to do")
        await self._end(place)
        try:
            await self._start(place)
        except OSError as error:
            raise WorkerError(f"No process can be started for the job ({error}): try again.") from None

    def _note_replaced(self, place: Place, why: object) -> None:
        if place.process is not None:
            _LOG.warning("worker %d is replaced: %s", place.process.pid, why)
            self.replaced += 1

    async def _replace(self, place: Place) -> None:
        await self._end(place)
        try:
            await self._start(place)
        except OSError as error:  # the next question tries it again
            _LOG.warning("no worker can be started: %s", error)

    async def _answer(self, place: Place, values: dict[str, Any]) -> dict[str, Any]:
        assert place.process is not None
        assert place.process.stdin is not None
        assert place.process.stdout is not None
        place.may_say = _MOST_EVENTS
        too_much = WorkerError(f"The job took more than {gib(self._memory_bytes)} of main memory here (--job-memory).")
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
                raise TimeLimit(f"The job did not end within {self._time_s:g} s (--job-timeout).")
            if not (text := line.result()):
                raise WorkerError("The process which traced the job died of it.")
            found = read_answer(text)
            if traceback := found.pop("traceback", None):
                _LOG.error("worker %d: unexpected error", place.process.pid, exc_info=UnexpectedError(traceback))
            return found
        except (ConnectionError, ValueError) as error:
            raise WorkerError(f"The process which traced the job died of it ({error}).") from None
        finally:
            watched.cancel()

    async def _memory_exceeded(self, place: Place, kills: int) -> None:
        """Return once a worker and what it started hold more than they may, or the kernel ended some of it for that."""
        assert place.process is not None
        while True:
            if place.group is not None:
                if place.group.kills() > kills:
                    return
            elif await asyncio.to_thread(held_bytes, place.process.pid, place.in_memory) > self._memory_bytes:
                return
            await asyncio.sleep(_WATCH_S)

    async def _start(self, place: Place) -> None:
        if self._is_stopped:
            raise InterruptedError("the service ends")
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

    async def _relay(self, place: Place, process: asyncio.subprocess.Process) -> None:
        """Write what a worker says on stderr into the operator's log, until it ends."""
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
                _LOG.info("worker %d: what else it says of this question is left out", process.pid)

    async def _end(self, place: Place) -> None:
        """End a worker and all that it started, and remove its temporary files."""
        await place.kill()
        if place.relay is not None:
            await asyncio.wait({place.relay}, timeout=_WATCH_S)  # for its last words; who escaped may still hold the pipe
            place.relay.cancel()
        if place.folder:
            await asyncio.to_thread(shutil.rmtree, place.folder, ignore_errors=True)
        place.process, place.relay, place.folder = None, None, ""
