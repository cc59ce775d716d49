"""A warm worker: a process which has imported what jobs need, and forks a fresh child for every job. Linux only.

One job, one process: what an earlier job left behind would move the numbers of the next. Forking after the imports keeps
the price of that at milliseconds. This is the caller's end; the worker's is in serve.py.

Messages on the socket (see protocol.py); `number` counts the requests of one worker:
    request   {"number": ..., "job": ..., "options": (RunOptions,) or (), "preload": [module, ...], "environment": {...}};
              a closed socket: the caller is gone
    answer    {"ready": ...} once; then for each request {"number": ..., "said": bytes} any number of times, and once
              {"number": ..., "answer": ..., "imported": [module, ...]} or {"number": ..., "died": text}
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vramcast.errors import TimeLimit, UsageError, WorkerError
from vramcast.tracer.forks import Lock, forget_in_forks
from vramcast.tracer.protocol import Gone, Late, Unreadable, receive, send
from vramcast.tracer.run_options import RunOptions

_START_S = 120.0  # arbitrary: importing torch from a cold, slow disk
_END_S = 2.0  # arbitrary: far above what a worker needs which sees that its caller has let go
LAST_OUTPUT_BYTES = 4000  # arbitrary: about a screen


def death(exit_code: int, output: bytes) -> str:
    """Return why a process ended without an answer: its exit code (negative: a signal) and its last words."""
    how = f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
    said = output[-LAST_OUTPUT_BYTES:].decode(errors="replace").strip()
    if exit_code == -signal.SIGKILL:
        hint = "it was probably out of memory"
    elif said:
        hint = "see its last output"
    else:
        hint = "the job, or a library in it, ended its own process (os._exit, a crash) without an exception"
    return f"The job's process {how}: {hint}." + (f"\n{said}" if said else "")


def check_time_limit(timeout_s: float) -> None:
    """Raise UsageError where a job could not even begin within the limit."""
    if not timeout_s > 0:  # also not a number
        raise UsageError(f"The time limit is {timeout_s:g} s: it must be above 0, for example 1800.")


class _Running:
    """One start of a worker's process, and the connection to it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.in_step = True  # whether no question is open
        self.number = 0
        self._connection, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as said:  # not our stderr: a worker must not keep our caller's pipes open
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd="/",
                start_new_session=True,  # a Ctrl-C at the terminal is for the caller, who ends the worker
            )  # fmt: skip
            theirs.close()
            try:
                self.ready: Any = receive(self._connection, time.monotonic() + _START_S)["ready"]
            except (Gone, Late, Unreadable) as error:
                self.end()
                raise WorkerError(f"The worker did not start: {_last_line(said) or type(error).__name__}.") from None
            except BaseException:
                self.end()
                raise
            _tell(_content(said))  # what libraries warn of while they are imported

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, request: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """Return the answer to a request; what a script says in between goes to stderr."""
        self.in_step = False
        self.number += 1
        send(self._connection, {"number": self.number, **request}, deadline)
        while True:
            message = receive(self._connection, deadline)
            if message["number"] != self.number:
                raise WorkerError(f"The worker answered request {message['number']} instead of {self.number}. Try again.")
            if "said" not in message:
                break
            _tell(message["said"])
        self.in_step = True
        return dict(message)

    def hang_up(self) -> None:
        """Let the worker, and whoever waits for it in another thread, see the end of the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """End the process, its job and what the job has started: the worker does all that when its connection closes."""
        self._connection.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """In a fork: the process is not ours."""
        self._connection.close()
        self.process.returncode = 0  # it must not be waited for, nor missed


class WarmWorker:
    """A worker process and the connection to it; jobs run one after the other.

    Whatever goes wrong while a job runs ends the process, and the next job starts another one: so no answer can reach anybody
    but who asked. A fork of this process starts its own.

    Args:
        command: Starts a process which calls `serve` on the file descriptor that is put at its end.
        environment: Of the process.
    Raises:
        WorkerError: it did not start.
    """

    _shared: ClassVar[dict[str, WarmWorker]] = {}
    _shared_lock: ClassVar[Lock] = Lock()

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._lock = Lock()
        self._preload: Sequence[str] = ()
        self._asked: list[_Running] = []  # more than one, where a signal handler asks while we wait
        forget_in_forks(self)
        self._idle: _Running | None = _Running(self._command, self._environment)
        self.ready: Any = self._idle.ready

    @classmethod
    def shared(cls, name: str, command: Sequence[str], environment: Mapping[str, str]) -> WarmWorker:
        """Return this process's worker of that name, made at the first call."""
        with cls._shared_lock:
            worker = cls._shared.get(name)
            if worker is None:
                worker = cls._shared[name] = cls(command, environment)
                atexit.register(worker.close)
            return worker

    @property
    def pid(self) -> int | None:
        """The process's number; None: it does not run."""
        running = self._idle or next(iter(self._asked), None)
        return running.process.pid if running is not None and running.is_alive else None

    @property
    def is_alive(self) -> bool:
        """Whether the process runs now; the next job starts it in any case."""
        return self.pid is not None

    def ask(
        self, job: Any, environment: Mapping[str, str], options: RunOptions | None = None, *, timeout_s: float, advice: str
    ) -> Any:
        """Run `job` in a process of its own and return its answer.

        Args:
            job: What the worker's `serve` was made for.
            environment: All environment variables of the job.
            options: How it is traced; None: it is no `Job`, and is run without.
            timeout_s: The job is killed after so many seconds.
            advice: What to do when that happens; ends the sentence "The job did not end within 9 s ...".
        Raises:
            UsageError: no time is given.
            TimeLimit: its time is up.
            WorkerError: its process died.
        """
        check_time_limit(timeout_s)
        with self._lock:
            running = self._take()
            self._asked.append(running)
            try:
                request = {
                    "job": job,
                    "options": () if options is None else (options,),
                    "preload": self._preload,
                    "environment": dict(environment),
                }
                answer = running.ask(request, time.monotonic() + timeout_s)
            except Late:
                raise TimeLimit(f"The job did not end within {timeout_s:g} s{advice}") from None
            except Gone:
                raise WorkerError("The worker was killed: is the machine out of memory? Try again.") from None
            except Unreadable as error:
                raise WorkerError(f"The job's answer cannot be read ({error}): is this process out of memory?") from None
            finally:
                self._give_back(running)
        if "died" in answer:
            raise WorkerError(answer["died"])
        self._preload = answer["imported"]  # what this job had to import, the next one finds imported
        return answer["answer"]

    def _take(self) -> _Running:
        """Return a process which waits for a request; it is nobody else's until it is given back."""
        running, self._idle = self._idle, None
        if running is not None and not running.is_alive:
            running.end()
            running = None
        return running or _Running(self._command, self._environment)

    def _give_back(self, running: _Running) -> None:
        """Keep a process whose question was answered; end one that still owes an answer, for which nobody waits any more."""
        with contextlib.suppress(ValueError):  # a fork has forgotten it
            self._asked.remove(running)
        if running.in_step and self._idle is None:
            self._idle = running
        else:
            running.end()

    def close(self) -> None:
        """End the process; the next job would start it again."""
        for running in list(self._asked):
            running.hang_up()  # the thread which asks ends it
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.end()

    def forget(self) -> None:
        """See `forks.Owner`."""
        for running in (self._idle, *self._asked):
            if running is not None:
                running.forget()
        self._idle = None
        self._asked.clear()


def _content(file: Any) -> bytes:
    file.seek(0)
    return bytes(file.read())


def _last_line(file: Any) -> str:
    lines = _content(file)[-LAST_OUTPUT_BYTES:].decode(errors="replace").split("\n")
    return next((line.strip().rstrip(".") for line in reversed(lines) if line.strip()), "")


def _tell(said: bytes) -> None:
    """Write to our stderr, wherever it leads; nobody needs to read it."""
    with contextlib.suppress(OSError):
        while said:
            said = said[os.write(2, said) :]
