"""A warm worker: a process with preloaded imports that forks a fresh child for every job. Linux only.

Each job needs its own process: state left behind by an earlier job would change the numbers of the next. Forking after the
imports, also those of a model's library, costs only milliseconds. This is the caller's end; the worker's is in
fork_server.py.

Messages on the socket (see messages.py); `number` counts the requests of one worker:
    request   {"number": ..., "job": ..., "options": (RunOptions,) or (), "preload": [module, ...], "environment": {...}},
              then a byte, with a command's standard input; a closed socket: the caller is gone
              {"twin": pid of the caller, "preload": [module, ...]}, then a byte with a socket: fork a worker to serve it
    answer    of a twin {"pid": ...} once; {"ready": ...} once; then for each request {"number": ..., "said": bytes} and
              {"number": ..., "progress": [...]} (see `Board`) any number of times, and once
              {"number": ..., "host": (peak memory, first)} with {"number": ..., "answer": ..., "imported": [module, ...]}, or
              {"number": ..., "died": text}, or "full" if main memory was; {"unreadable": text}: not a valid request
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from vramcast.core import progress
from vramcast.core.deadline import Deadline
from vramcast.core.errors import JobError, TimeLimit, WorkerError
from vramcast.jobs import targets
from vramcast.tracer.processes import standard_input
from vramcast.tracer.processes.fork_safety import Lock, forget_in_forks
from vramcast.tracer.processes.thread_pool import lane, widened
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.messages import Gone, Late, Unreadable, receive, send
from vramcast.tracer.protocol.run_options import RunOptions

_START_S = 120.0  # arbitrary: importing torch from a cold, slow disk
_END_S = 2.0  # arbitrary: far more than a worker needs after its caller has let go
LAST_OUTPUT_BYTES = 4000  # arbitrary: about a screen


def death(exit_code: int, output: bytes) -> str:
    """Return why a process ended without an answer: its exit code (negative: a signal) and its last output."""
    how = f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
    said = output[-LAST_OUTPUT_BYTES:].decode(errors="replace").strip()
    if exit_code == -signal.SIGKILL:
        hint = "it was probably out of memory"
    elif said:
        hint = "see its last output"
    else:
        hint = "the job, or a library in it, ended its own process (os._exit, a crash) without an exception"
    return f"The job's process {how}: {hint}." + (f"\n{said}" if said else "")


class _Fork:
    """A process forked by another one, with the methods of `subprocess.Popen` used here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._file = os.pidfd_open(pid)

    def __del__(self) -> None:
        os.close(self._file)

    def poll(self) -> int | None:
        """Return 0 if it has ended; only its parent can read its exit status."""
        if self.returncode is None and select.select([self._file], [], [], 0)[0]:
            self.returncode = 0
        return self.returncode

    def wait(self, timeout: float | None = None) -> None:
        if self.returncode is None and not select.select([self._file], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired([], timeout or 0)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._file, signal.SIGKILL)


class _Running:
    """One start of a worker's process, and the connection to it."""

    process: subprocess.Popen[bytes] | _Fork

    def __init__(self, start: Callable[[_Running, socket.socket], subprocess.Popen[bytes] | _Fork]) -> None:
        self.in_step = True  # whether no request is open
        self.is_told = self._is_sending = False  # is_told: to stop; that waits while a request is being sent
        self.number = 0
        self._is_ready = False
        self._ready: Any = None
        self.connection, theirs = socket.socketpair()
        # Not our stderr: a worker must not keep our caller's pipes open.
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 it is closed when the worker serves
        try:
            with theirs:
                self.process = start(self, theirs)
        except BaseException:
            self.connection.close()  # the worker sees that and ends
            self.said.close()
            raise

    @classmethod
    def started(cls, command: Sequence[str], environment: Mapping[str, str]) -> _Running:
        """Start a new process."""
        return cls(
            lambda running, theirs: subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, stdout=running.said, stderr=running.said,
                cwd="/", start_new_session=True,  # a Ctrl-C at the terminal is for the caller, which ends the worker
            )
        )  # fmt: skip

    def twin(self, preload: Sequence[str]) -> _Running:
        """Return a fork of the process, with the same imports; it serves a connection of its own.

        Raises:
            Gone, Late, Unreadable, OSError, WorkerError: There is none, and this process is unusable too.
        """
        deadline = time.monotonic() + _START_S
        self.in_step = False

        def fork(other: _Running, theirs: socket.socket) -> _Fork:
            send(self.connection, {"twin": os.getpid(), "preload": preload}, deadline)
            socket.send_fds(self.connection, [b"\0"], [theirs.fileno()])
            theirs.close()
            return _Fork(receive(other.connection, deadline)["pid"])

        other = _Running(fork)
        other.ready()
        self.in_step = True
        return other

    def ready(self) -> Any:
        """Wait until the process serves requests, and return its first message.

        Raises:
            WorkerError: It did not start.
        """
        if self._is_ready:
            return self._ready
        progress.tell(progress.Stage.WORKER)
        try:
            self._ready = receive(self.connection, time.monotonic() + _START_S)["ready"]
        except (Gone, Late, Unreadable) as error:
            why = _last_line(self.said) or type(error).__name__
            self.end()
            raise WorkerError(f"The worker did not start: {why}.") from None
        except BaseException:
            self.end()
            raise
        self._is_ready = True
        with self.said as said:
            if warnings := _content(said):
                progress.listener.output(warnings)  # of libraries during their import
        return self._ready

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def why_gone(self) -> str:
        """Return why the process ended and closed its connection."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        code = self.process.returncode
        if code is None or code in (0, -signal.SIGKILL):  # only a fork's parent can read its exit status
            return "The worker was killed: is the machine out of memory? Try again."
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"The worker {how} while it ran the job: try again, and report it if that happens again."

    def ask(self, request: Mapping[str, Any], deadline: float, stdin: int | None = None) -> dict[str, Any]:
        """Return the answer to a request; a script's output meanwhile goes to stderr, and its input comes from `stdin`."""
        self.in_step, self._is_sending = False, True
        self.number += 1
        send(self.connection, {"number": self.number, **request}, deadline)
        try:
            socket.send_fds(self.connection, [b"\0"], [] if stdin is None else [stdin])
        except OSError:
            raise Gone from None
        self._is_sending = False
        if self.is_told:  # already, or meanwhile
            self.stop()
        host = 0, 0
        while True:
            message = receive(self.connection, deadline)
            if "unreadable" in message:
                self.in_step = True
                raise WorkerError(
                    f"The tracing process cannot read the job ({message['unreadable']}): it can import only installed "
                    "packages and those on PYTHONPATH."
                )
            if message["number"] != self.number:
                raise WorkerError(f"The worker answered request {message['number']} instead of {self.number}. Try again.")
            if "said" in message:
                progress.output(message["said"], request)
            elif "progress" in message:
                progress.tell_numbers(message["progress"])
            elif "host" in message:
                host = message["host"]
            else:
                break
        self.in_step = True
        return {**message, "host": host}

    def stop(self) -> bool:
        """Let the job end now, with the observations so far, if it can be stopped; its answer comes as usual.

        Returns:
            Whether the process serves requests already, so that there may be something to see.
        """
        self.is_told = True
        if not self.in_step and not self._is_sending:
            with contextlib.suppress(OSError):
                send(self.connection, {"stop": self.number}, time.monotonic() + _END_S)
        return self._is_ready

    def hang_up(self) -> None:
        """Show the end of the connection to the worker, and to any thread that waits for it."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """End the process, its job and the job's children: the worker does all that when its connection closes."""
        self.connection.close()
        self.said.close()
        if not self._is_ready:
            self.process.kill()  # it has no children, and would check its connection only when Python runs
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """Forget the process, in a fork: it belongs to the parent."""
        self.connection.close()
        self.said.close()
        self.process.returncode = 0  # prevents waits for it and warnings about it


class WarmWorker:
    """A worker process and the connection to it; jobs of one lane run one after the other, those of several lanes
    concurrently.

    Any error while a job runs ends the process, and the next job starts another one, so no answer can reach another
    request. A fork of this process starts its own.

    Args:
        command: Command of a process that calls `serve` on the file descriptor appended to it.
        environment: Environment of the process.
        wait: Whether to wait until it serves requests; otherwise the first job waits for it.
        running: Such a process, already started.
        lane: Lane that it serves; lane 0 requests forks of itself for the others.
    Raises:
        WorkerError: It did not start.
    """

    _shared: ClassVar[dict[str, WarmWorker]] = {}
    _shared_lock: ClassVar[Lock] = Lock()

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, wait: bool = True, running: _Running | None = None,
        lane: int = 0,
    ) -> None:  # fmt: skip
        self._command = list(command)
        self._environment = dict(environment)
        self._lock = Lock()
        self._lane = lane
        self._preload: Sequence[str] = ()
        self._lanes: dict[int, WarmWorker] = {}  # the other lanes; this worker is lane 0
        self._is_told = False
        self._asked: list[_Running] = []  # more than one if a signal handler makes a request while we wait
        forget_in_forks(self)
        self._idle: _Running | None = running or _Running.started(self._command, self._environment)
        if wait:
            self._idle.ready()
        if not lane:
            widened.add(self)

    @classmethod
    def shared(cls, name: str, command: Sequence[str], environment: Mapping[str, str]) -> WarmWorker:
        """Return this process's worker of that name, created at the first call."""
        with cls._shared_lock:
            worker = cls._shared.get(name)
            if worker is None:
                worker = cls._shared[name] = cls(command, environment)
                atexit.register(worker.close)
            return worker

    @property
    def ready(self) -> Any:
        """Return the first message of the process.

        Raises:
            WorkerError: It did not start.
        """
        with self._lock:
            running = self._take()
            self._asked.append(running)
            try:
                return running.ready()
            finally:
                self._give_back(running)

    @property
    def pid(self) -> int | None:
        """Return the process's number; None: it is not running."""
        running = self._idle or next(iter(self._asked), None)
        return running.process.pid if running is not None and running.is_alive else None

    @property
    def is_alive(self) -> bool:
        """Return whether the process is running; the next job starts it in any case."""
        return self.pid is not None

    def ask(
        self, job: Any, environment: Mapping[str, str], options: RunOptions | None = None, *, timeout_s: float, advice: str
    ) -> Any:
        """Run `job` in a process of its own and return its answer.

        Args:
            job: A job for the worker's `serve`.
            environment: All environment variables of the job.
            options: Options of the trace; None: `job` is not a `Job`, and runs without options.
            timeout_s: Seconds after which the job is killed.
            advice: Advice for a timeout; ends the sentence "The job did not end within 9 s ...".
        Raises:
            UsageError: `timeout_s` is not positive.
            TimeLimit: The job timed out.
            JobError: The job took too much main memory.
            WorkerError: Its process died.
        """
        deadline = Deadline.after(timeout_s)
        if lane() != self._lane:
            return self._of_lane(lane()).ask(job, environment, options, timeout_s=timeout_s, advice=advice)
        with self._lock:
            running = self._take()
            running.is_told = False
            self._asked.append(running)
            try:
                running.ready()
                running.is_told |= self._is_told
                request = {
                    "job": job,
                    "options": () if options is None else (options,),
                    "preload": (*self._preload, *targets.imports(getattr(job, "target", None))),
                    "environment": dict(environment),
                }
                with _input_of(job) as stdin:
                    answer = running.ask(request, deadline.at_s, stdin)
            except Late:
                raise TimeLimit.within(timeout_s, advice) from None
            except Gone:
                raise WorkerError(running.why_gone()) from None
            except Unreadable as error:
                raise WorkerError(f"The job's answer cannot be read ({error}): is this process out of memory?") from None
            finally:
                self._give_back(running)
        if "full" in answer:
            raise JobError(answer["full"], is_of_machine=True)
        if "died" in answer:
            raise WorkerError(answer["died"])
        self._preload = answer["imported"]  # the next job finds this one's imports preloaded
        if isinstance(result := answer["answer"], Result):
            result.max_resident_bytes = max(answer["host"][0], result.max_resident_bytes)
            result.grown_bytes = max(0, answer["host"][0] - answer["host"][1]) or None  # a short job is hardly seen
        return result

    def stop(self) -> bool:
        """Let the running training command end, with the observations so far, and each that comes before `go_on`.

        Returns:
            Whether there may be an answer soon: no request waits for a process to start.
        """
        self._is_told = True
        served = [running.stop() for running in list(self._asked)]
        return all(served)

    def go_on(self) -> None:
        """Let commands run normally again."""
        self._is_told = False

    def widen(self, lanes: int) -> None:
        """Fork the processes of other lanes now; otherwise they wait until this lane's job has ended."""
        if self._idle is not None and self._idle.is_alive:
            for number in range(1, lanes):
                self._of_lane(number)

    def _of_lane(self, number: int) -> WarmWorker:
        """Return the worker of a lane, which begins as a fork of this one."""
        if (worker := self._lanes.get(number)) is not None:  # it need not wait for this lane's job
            return worker
        with self._lock:
            worker = self._lanes.get(number)
            if worker is None:
                running = self._take()
                try:
                    running.ready()
                    twin = running.twin(self._preload)
                except (Gone, Late, Unreadable, OSError):
                    twin = None  # for example, a system without pidfd_open: start it like the first
                finally:
                    self._give_back(running)
                worker = self._lanes[number] = WarmWorker(self._command, self._environment, running=twin, lane=number)
                worker._preload = self._preload
            return worker

    def _take(self) -> _Running:
        """Return a process that waits for a request; the caller owns it until it is given back."""
        running, self._idle = self._idle, None
        if running is not None and not running.is_alive:
            running.end()
            running = None
        return running or _Running.started(self._command, self._environment)

    def _give_back(self, running: _Running) -> None:
        """Keep a process with an answered request; end one with an open request, because no thread waits for its answer."""
        with contextlib.suppress(ValueError):  # a fork has dropped it
            self._asked.remove(running)
        if running.in_step and self._idle is None:
            self._idle = running
        else:
            running.end()

    def close(self) -> None:
        """End the process; the next job would start it again."""
        for running in list(self._asked):
            running.hang_up()  # the requesting thread ends it
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.end()
        for worker in list(self._lanes.values()):
            worker.close()

    def forget(self) -> None:
        """Drop the processes in a fork; see `forks.Owner`."""
        for running in (self._idle, *self._asked):
            if running is not None:
                running.forget()
        self._idle = None
        self._asked.clear()
        self._lanes.clear()


@contextlib.contextmanager
def _input_of(job: Any) -> Iterator[int | None]:
    """Lend a command's standard input for the time of its request."""
    stdin = standard_input.of_one_run() if getattr(job, "command", None) is not None else None
    try:
        yield stdin
    finally:
        if stdin is not None:
            os.close(stdin)


def _content(file: Any) -> bytes:
    file.seek(0)
    return bytes(file.read())


def _last_line(file: Any) -> str:
    lines = _content(file)[-LAST_OUTPUT_BYTES:].decode(errors="replace").split("\n")
    return next((line.strip().rstrip(".") for line in reversed(lines) if line.strip()), "")
