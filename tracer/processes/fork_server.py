"""The worker's end of a warm worker (see warm_worker.py): forks a child for each job, and ends with its caller.

    python -m vramcast.tracer.processes.fork_server MODULE FD

Serves jobs with `run_job` of MODULE, after a call of its `warm_up`.

The child writes its answer to a socket of its own, which only the worker reads; complete answers are sent to the caller
under the request's number. So a child that dies half-way, or returns twice, cannot disturb the connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from typing import Any, NamedTuple, NoReturn

from vramcast.core.process_tree import running
from vramcast.core.progress import Board, heard_by
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.processes.memory_guard import MemoryGuard
from vramcast.tracer.processes.warm_worker import LAST_OUTPUT_BYTES, death
from vramcast.tracer.program.cutoff import STOP
from vramcast.tracer.protocol.messages import LENT, Frame, Gone, Unreadable, pack, receive, send, send_packed

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # spec: Linux prctl(2)
_LOOK_MS = 250  # arbitrary: interval for checks that the caller, or a job with a closed socket, still lives
_SOON_MS = 5  # arbitrary: the same for a process about to end
_REAP_S = 1.0  # arbitrary: a process that outlives SIGKILL for longer is stuck in the kernel
_PIPE_BYTES = 1 << 16  # spec: pipe(7), the capacity of a pipe
_ANSWER_BYTES = 1 << 20  # arbitrary: bytes per read
_UNHEARD = 70  # spec: sysexits.h, an internal software error
# Packages whose import starts no thread and reads no user code: the worker may import them before it forks.
_WARM_PACKAGES = frozenset(
    {"PIL", "einops", "huggingface_hub", "mpmath", "numpy", "regex", "safetensors", "sympy", "timm", "tokenizers", "torch"}
    | {"torchvision", "transformers", "vramcast", "yaml"}
)
_ASKING = frozenset({"bitsandbytes"})  # measured: 0.50 counts the cards while it is imported, after it registered operators
_twins: set[int] = set()  # workers forked from this one, for other lanes of its caller
Run = Callable[..., Any]  # a job with its RunOptions, or work without options


def serve(fd: int, warm_up: Callable[[], tuple[Run, Any]]) -> NoReturn:
    """Serve requests until the caller closes its end or exits.

    Args:
        fd: The socket.
        warm_up: Imports the modules that jobs need. Returns the function that runs one job in a forked child, and a message
            for the caller.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {STOP})  # a stop signal sent before a job can handle it stays pending
    inherited = frozenset(os.environ)  # a job gets its caller's variables instead
    parent = os.getppid()
    caller = _Caller(socket.socket(fileno=fd), lambda: os.getppid() != parent)
    with contextlib.suppress(Gone):
        with _ended_with(caller.connection), _kept():
            run, ready = warm_up()
        while True:
            # Orphans left by jobs become our children instead of init's, and end with the job.
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
            send(caller.connection, {"ready": ready})
            caller = _until_twin(caller, run, inherited)
    os._exit(0)


class AskedForCard(BaseException):
    """An import in the worker queried the card; not an Exception, because packages catch those and record an absent card."""


class _Caller(NamedTuple):
    """The caller of a worker: the connection, and whether the caller is gone even if a fork of it holds a copy of its end."""

    connection: socket.socket
    is_gone: Callable[[], bool]


def _until_twin(caller: _Caller, run: Run, inherited: frozenset[str]) -> _Caller:
    """Serve requests, and fork twins on request; in a twin, return its caller.

    Raises:
        Gone: The caller is gone.
    """
    while _waits(caller):
        try:
            request = receive(caller.connection)
        except Unreadable as error:
            _passed(caller.connection)
            send(caller.connection, {"unreadable": str(error)})
            continue
        if "stop" in request:  # for a job that has ended meanwhile
            continue
        lent = _passed(caller.connection)
        with _ended_with(caller.connection), _kept():
            _preload(request["preload"])
        if "twin" not in request:
            _Job(caller, run, request, inherited, lent).run()
            continue
        assert lent is not None
        connection = socket.socket(fileno=lent)
        pid = os.fork()
        if pid == 0:
            caller.connection.close()
            _twins.clear()
            send(connection, {"pid": os.getpid()})
            return _Caller(connection, functools.partial(_is_no_more, int(request["twin"])))
        _twins.add(pid)
        connection.close()
    raise Gone


def _passed(connection: socket.socket) -> int | None:
    """Return the descriptor sent with the byte behind a request; None: the byte came alone."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    return descriptors[0] if descriptors else None


def _is_no_more(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return True
    return False


@contextlib.contextmanager
def _ended_with(connection: socket.socket) -> Iterator[None]:
    """End this process, by SIGIO, when the caller closes its end during imports, which take seconds."""
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        if _is_gone(connection):  # already
            raise Gone
        yield
    finally:
        fcntl.fcntl(connection, fcntl.F_SETFL, flags)


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Disable garbage collection during imports, which saves a sixth of the time, and hide the imported objects from jobs'
    collectors.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _is_gone(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _waits(caller: _Caller) -> bool:
    """Wait for the next request; return False if the caller is gone."""
    poll = select.poll()
    poll.register(caller.connection, select.POLLIN)
    while not poll.poll(_LOOK_MS):
        if caller.is_gone():
            return False
    return True


class _Refusal(MetaPathFinder):
    """An import hook that refuses `_ASKING` before their code runs: what they did until they asked would stay."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Let others find a module.

        Raises:
            AskedForCard: It would ask.
        """
        if name in _ASKING:
            raise AskedForCard


def _preload(packages: list[str]) -> None:
    refusal = _Refusal()
    sys.meta_path.insert(0, refusal)
    try:
        for package in packages:
            if package not in sys.modules:
                before = set(sys.modules)
                try:
                    importlib.import_module(package)
                except (Exception, AskedForCard):  # created by hand, or something of it cannot be imported here
                    _forget_orphans(set(sys.modules) - before)
    finally:
        sys.meta_path.remove(refusal)


def _forget_orphans(names: set[str]) -> None:
    """Forget modules that a package has imported before its own import failed: a later one would not make them its parts."""
    for name in sorted(names):
        package = name.rpartition(".")[0]
        if package and package not in sys.modules:
            del sys.modules[name]


class _Job:
    """One request, from the fork of its process to the end of all processes that it started."""

    def __init__(
        self, caller: _Caller, run: Run, request: dict[str, Any], inherited: frozenset[str], stdin: int | None
    ) -> None:
        self._connection, self._caller, self._run, self._request = caller.connection, caller, run, request
        self._inherited, self._stdin = inherited, stdin
        # A model's output is kept for the error message; a script writes directly to its user.
        self._is_script = getattr(request["job"], "command", None) is not None
        self._frame = Frame()
        self._board = Board()
        self._last_output = b""
        self._is_reaped = False

    def run(self) -> None:
        """Run the job and send its answer.

        Raises:
            Gone: The caller is gone, and the job has ended.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        self._answers, answer = socket.socketpair()
        self._said, say = os.pipe()
        worker = os.getpid()
        guard = MemoryGuard(next((one.host_bytes for one in self._request["options"]), None), _twins, self._kill)
        self._pid = os.fork()
        if self._pid == 0:
            self._connection.close()
            self._answers.close()
            os.close(self._said)
            with heard_by(self._board):
                _child(worker, answer, guard, (self._stdin, say), self._run, self._request, self._inherited)
        answer.close()
        os.close(say)
        if self._stdin is not None:
            os.close(self._stdin)
        guard.start()
        try:
            status = self._follow()
            guard.close()
            self._kill()
            if guard.said:
                send(self._connection, {"number": self._request["number"], "full": guard.said})
            elif status is None:
                send(self._connection, {"number": self._request["number"], "host": (guard.peak_bytes, guard.began_bytes)})
                send_packed(self._connection, self._frame.data)
            else:
                send(self._connection, {"number": self._request["number"], "died": self._death(status)})
        except Gone:
            self._kill()
            if lent := self._request["environment"].get(LENT):
                shutil.rmtree(lent, ignore_errors=True)
            raise
        finally:
            guard.close()
            self._kill()
            _reap()
            self._answers.close()
            os.close(self._said)

    def _follow(self) -> int | None:
        """Wait for the job's answer and return None; return the process's status if it ended without one."""
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP | select.POLLIN)
        poll.register(self._answers, select.POLLIN)
        poll.register(self._said, select.POLLIN)
        look_ms, told = _LOOK_MS, self._board.read()
        while True:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            self._is_reaped = bool(ended)
            events = dict(poll.poll(0 if ended else look_ms))
            on_connection = events.get(self._connection.fileno(), 0)
            if on_connection & ~select.POLLIN or self._caller.is_gone():
                raise Gone
            if on_connection and receive(self._connection) == {"stop": self._request["number"]}:
                os.kill(self._pid, STOP)
            if (latest := self._board.read()) != told:
                told = latest
                send(self._connection, {"number": self._request["number"], "progress": told})
            if self._answers.fileno() in events:
                while self._frame.missing_bytes and (piece := self._piece()):
                    self._frame.add(piece)
                if piece == b"":
                    poll.unregister(self._answers)
                    look_ms = _SOON_MS
            if not self._frame.missing_bytes:
                events = dict(poll.poll(0))
            if self._said in events and not self._hear():  # one read takes everything written before the answer
                poll.unregister(self._said)
            if ended or not self._frame.missing_bytes:
                return status if self._frame.missing_bytes else None

    def _hear(self) -> bool:
        """Read the job's stdout and stderr; return False if the job has closed both."""
        said = os.read(self._said, _PIPE_BYTES)
        if self._is_script and said:
            send(self._connection, {"number": self._request["number"], "said": said})
        else:
            self._last_output = (self._last_output + said)[-LAST_OUTPUT_BYTES:]
        return bool(said)

    def _piece(self) -> bytes | None:
        """Return the next part of the answer; empty: the job has closed its end; None: nothing yet."""
        try:
            return self._answers.recv(min(self._frame.missing_bytes, _ANSWER_BYTES), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:  # it ended without reading all of our data
            return b""

    def _death(self, status: int) -> str:
        code = os.waitstatus_to_exitcode(status)
        if code == _UNHEARD:
            return "The job's process could not send its answer: it must not close file descriptors that it has not opened."
        return death(code, self._last_output)

    def _kill(self) -> None:
        """Kill the job and its process group; `_reap` ends processes that left the group."""
        with contextlib.suppress(OSError):
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            if not self._is_reaped:  # it may not have created its group yet
                os.kill(self._pid, signal.SIGKILL)


def _reap() -> None:
    """Wait for the job's processes to end, and kill those that it left behind: they are our children now."""
    end = time.monotonic() + _REAP_S
    while time.monotonic() < end:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        _twins.discard(pid)
        if pid == 0:
            left = {number for number, one in running().items() if one.parent == os.getpid()} - _twins
            if not left:
                return
            for child in left:
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.001)  # arbitrary: short, for a process that was just killed


def _child(
    worker: int, answers: socket.socket, guard: MemoryGuard, streams: tuple[int | None, int], run: Run,
    request: dict[str, Any], inherited: frozenset[str],
) -> NoReturn:  # fmt: skip
    """Run the job, answer, and exit without any of the parent's cleanup."""
    code = 1
    me = os.getpid()
    try:
        os.setsid()  # its own process group: its children end with it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # without the worker, no process would end this job
        if os.getppid() != worker:
            os._exit(code)
        _set_streams(*streams)
        guard.enter()
        with contextlib.suppress(Exception):  # its output is not lost when it dies
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.register_at_fork(after_in_child=answers.close)
        environment = request["environment"]
        for name in inherited - environment.keys():
            os.environ.pop(name, None)
        os.environ.update(environment)
        before = set(sys.modules)
        answer = run(request["job"], *request["options"])
        if os.getpid() == me:  # otherwise the job forked and returned twice
            _flush()
            imported = tuple(sorted(name for name in set(sys.modules) - before if _is_warm(name)))
            data = pack({"number": request["number"], "answer": answer, "imported": imported})
            code = _UNHEARD
            answers.setblocking(True)
            answers.sendall(data)
            code = 0
    except BaseException:  # nothing may fall through into the parent's loop
        if os.getpid() == me:
            import traceback

            traceback.print_exc()
            _flush()
    finally:
        os._exit(code)


def _set_streams(stdin: int | None, output: int) -> None:
    """Replace the worker's streams by the job's own; the worker reads nothing."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    if stdin is not None:
        os.dup2(stdin, 0)
        os.close(stdin)
        encoding, errors = sys.stdin.encoding, sys.stdin.errors
        sys.stdin = open(0, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115 it is the job's
        vars(sys)["__stdin__"] = sys.stdin


def _flush() -> None:
    """Flush the output; the job may have closed its stdout or replaced it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _is_warm(module: str) -> bool:
    # Inductor queries the device during its import; the worker must not touch CUDA before it forks.
    return module.partition(".")[0] in _WARM_PACKAGES and not module.startswith(torch_api.INDUCTOR)


def main(module: str, fd: int) -> NoReturn:
    """Serve jobs with `run_job` of `module`, after a call of its `warm_up`."""

    def warm_up() -> tuple[Run, Any]:
        served = importlib.import_module(module)
        served.warm_up()
        return served.run_job, None

    serve(fd, warm_up)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
