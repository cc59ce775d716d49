"""A guard of main memory: it ends a job that takes too much, before the kernel kills a process or swaps. Linux only."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from vramcast.core.main_memory import available_bytes, kept_bytes
from vramcast.core.process_tree import descendants
from vramcast.core.units import INT64_MOST, gib
from vramcast.tracer.protocol.job_advice import LESS_MAIN_MEMORY
from vramcast.tracer.protocol.source_places import SourceLine, users_place

_SHARE, _MOST_SHARE = 0.8, 0.95  # arbitrary: of the available memory: by default, and if the user sets a limit
_SCARCE_BYTES: Final = 1 << 29  # arbitrary: below it, many jobs at once take the rest: those end that hold more than is left
_LOOK_S, _SOON_S = 0.25, 0.005  # arbitrary: interval of looks far from the limit, and near it
_IDLE: Final = 10  # arbitrary: the same as a multiple of the duration of a look, which is long for many pages
_FASTEST: Final = 8 << 30  # arbitrary: bytes a second, ten times what torch's fill_ touched on two busy cores
_WHERE: Final = signal.SIGURG  # arbitrary: other programs that the job started ignore it
_ANSWER_S: Final = 0.5  # arbitrary: for the stack of a process
_FRAME: Final = re.compile(r'File "(.+)", line (\d+) in (.+)')  # spec: CPython 3.11 to 3.14, faulthandler
_OUTERMOST: Final = b"in _run_module_as_main"  # spec: CPython 3.11 to 3.14, runpy: a worker is a module


class MemoryGuard(threading.Thread):
    """Watches all processes below this one but `others` and theirs; made before a job is forked, and started after.

    Calls `end` if they hold more than `limit_bytes`, or than a share of the available memory.
    """

    def __init__(self, limit_bytes: int | None, others: Collection[int], end: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._limit_bytes, self._others, self._end = limit_bytes, others, end
        self._over, self._stacks = threading.Event(), socket.socketpair()
        self._stacks[0].settimeout(_ANSWER_S)
        self.peak_bytes, self.began_bytes, self.said = 0, kept_bytes(os.getpid()), ""  # the last: why the job was ended

    def enter(self) -> None:
        """Let this process and its forks write their stack when the guard asks, also inside a call of C."""
        faulthandler.register(_WHERE, file=self._stacks[1], all_threads=False)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # if the kernel must kill after all, it takes the job

    def run(self) -> None:
        """Look until the job is over, the more often the nearer it is to the limit."""
        wait_s = 0.0
        while not self._over.wait(wait_s):
            looked_s = time.monotonic()
            pids = descendants(os.getpid(), self._others)
            held, available = sum(kept_bytes(pid, is_exact=len(pids) > 1) for pid in pids), available_bytes()
            self.peak_bytes = max(held, self.peak_bytes)
            share = _SHARE if self._limit_bytes is None else _MOST_SHARE
            scarce = available if available < _SCARCE_BYTES else INT64_MOST
            most = min(int(share * (held + available)), self._limit_bytes or INT64_MOST, scarce)
            if held > most:
                self.said = self._why(held, most, pids)
                self._end()
                return
            wait_s = min(max(_SOON_S, (most - held) / _FASTEST), max(_LOOK_S, _IDLE * (time.monotonic() - looked_s)))

    def close(self) -> None:
        """End the watch."""
        self._over.set()
        self.join()
        for end in self._stacks:
            end.close()

    def _why(self, held: int, most: int, pids: Sequence[int]) -> str:
        limit = "--host-memory" if most == self._limit_bytes else "a share of the available memory"
        place = next(filter(None, map(self._place, (max(pids, key=kept_bytes), pids[0]))), "")
        return f"The job took {gib(held)} of main memory{place}; it may take {gib(most)} ({limit}).{LESS_MAIN_MEMORY}"

    def _place(self, pid: int) -> str:
        """Return the line of the user's code in which a process is; "" if it does not say it."""
        said = b""
        with contextlib.suppress(OSError):  # it has ended, or is stuck in the kernel
            os.kill(pid, _WHERE)
            while _OUTERMOST not in said:
                said += self._stacks[0].recv(1 << 16)
        stack = (
            SourceLine(file, int(line), function) for file, line, function in _FRAME.findall(said.decode(errors="replace"))
        )
        return "" if (place := users_place(stack)) is None else f" in {place.file}:{place.line}, in {place.function}"
