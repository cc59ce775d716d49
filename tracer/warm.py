"""A warm worker: a process which has imported what jobs need, and forks a fresh child for every job. Linux only.

One job, one process: what an earlier job left behind would move the numbers of the next. Forking after the imports keeps
the price of that at milliseconds.

Messages on the socket (see protocol.py):
    request   {"job": ..., "preload": [module, ...], "environment": {...}}, or nothing more: the caller is gone, it ends
    answer    {"ready": ...} once; then for each request {"pid": ...}, and what the job gave or {"died": text}
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from vramcast.errors import TimeLimit, WorkerError
from vramcast.tracer.protocol import receive, send

_START_S = 120.0  # arbitrary: importing torch from a cold, slow disk
_LAST_OUTPUT_BYTES = 4000  # arbitrary: about a screen
_ANSWERED = 77  # arbitrary: not 0, with which a job's own os._exit(0) would pass for an answer
_PR_SET_PDEATHSIG = 1  # spec: Linux prctl(2)
# Packages whose import starts no thread and reads no user code: the worker may import them before it forks.
_WARM_PACKAGES = frozenset(
    {"PIL", "einops", "huggingface_hub", "mpmath", "numpy", "regex", "safetensors", "sympy", "timm", "tokenizers", "torch"}
    | {"torchvision", "transformers", "yaml"}
)


def death(exit_code: int, output: bytes) -> str:
    """Return why a process ended without an answer: its exit code (negative: a signal) and its last words."""
    how = f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
    hint = "it was probably out of memory" if exit_code == -signal.SIGKILL else "see its last output"
    said = output[-_LAST_OUTPUT_BYTES:].decode(errors="replace").strip()
    return f"The job's process {how}: {hint}." + (f"\n{said}" if said else "")


# ------------------------------------------------------------------------------------------------ the caller's end
class WarmWorker:
    """A worker process and the connection to it; jobs run one after the other.

    Args:
        command: Starts a process which calls `serve` on the file descriptor that is put at its end.
        environment: Of the process.
    Raises:
        WorkerError: it did not start.
    """

    _shared: ClassVar[dict[str, WarmWorker]] = {}

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._preload: tuple[str, ...] = ()
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, stdout=2, cwd="/",
        )  # fmt: skip
        theirs.close()
        self._connection = ours
        self._connection.settimeout(_START_S)
        try:
            self.ready: Any = receive(self._connection)["ready"]
        except (EOFError, OSError) as error:
            self.close()
            raise WorkerError(f"The worker did not start ({type(error).__name__}); its messages are above.") from None

    @classmethod
    def shared(cls, name: str, start: Callable[[], WarmWorker]) -> WarmWorker:
        """Return this process's worker of that name, started at the first call and again when it died."""
        worker = cls._shared.get(name)
        if worker is None or not worker.is_alive:
            if worker is not None:
                worker.close()
            worker = cls._shared[name] = start()
            atexit.register(worker.close)
        return worker

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def ask(self, job: Any, environment: Mapping[str, str], *, timeout_s: float, advice: str) -> Any:
        """Run `job` in a process of its own and return its answer.

        Args:
            job: What the worker's `serve` was made for.
            environment: All environment variables of the job.
            timeout_s: The job is killed after so many seconds.
            advice: What to do when that happens; ends the sentence "The job did not end within 9 s ...".
        Raises:
            TimeLimit: its time is up.
            WorkerError: its process died.
        """
        pid: int | None = None
        with self._lock:
            try:
                self._connection.settimeout(timeout_s)
                send(self._connection, {"job": job, "preload": self._preload, "environment": dict(environment)})
                pid = receive(self._connection)["pid"]
                answer = receive(self._connection)
            except TimeoutError:
                self._kill(pid)
                raise TimeLimit(f"The job did not end within {timeout_s:.0f} s{advice}") from None
            except (EOFError, OSError):
                self._kill(None)
                raise WorkerError("The worker was killed: is the machine out of memory? Try again.") from None
            except KeyboardInterrupt:
                self._kill(pid)
                raise
        if isinstance(answer, dict) and "died" in answer:
            raise WorkerError(answer["died"])
        answer, self._preload = answer  # what this job had to import, the next one finds imported
        return answer

    def _kill(self, pid: int | None) -> None:
        """End a job and the worker with it: the connection is out of step, the next job starts a new one."""
        if pid is not None:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


# ------------------------------------------------------------------------------------------------ the worker's end
def serve(fd: int, run: Callable[[Any], Any], *, inherited: frozenset[str], ready: Any) -> None:
    """Serve requests until the caller closes its end.

    Args:
        fd: The socket.
        run: Runs one job, in a forked child, and returns its answer.
        inherited: Names of the environment variables with which this process began; a job has its caller's instead.
        ready: Sent to the caller now.
    """
    connection = socket.socket(fileno=fd)
    gc.freeze()
    send(connection, {"ready": ready})
    with contextlib.suppress(EOFError, ConnectionError):  # the caller is gone
        _serve_all(connection, run, inherited)


def _serve_all(connection: socket.socket, run: Callable[[Any], Any], inherited: frozenset[str]) -> None:
    while True:
        request = receive(connection)
        for package in request["preload"]:
            if package not in sys.modules:
                with contextlib.suppress(Exception):  # made by hand, or a sub-module of something that is not importable
                    importlib.import_module(package)
        with tempfile.TemporaryFile() as output:
            _fork(connection, run, request, inherited, output)


def _fork(
    connection: socket.socket, run: Callable[[Any], Any], request: dict[str, Any], inherited: frozenset[str], output: Any
) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    told, tell = os.pipe()  # both processes write to the socket: the child waits until the parent has
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        os.read(told, 1)
        os.close(told)
        _child(connection, run, request, inherited, output.fileno())
    os.close(told)
    send(connection, {"pid": pid})
    os.close(tell)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _ANSWERED:
        return
    output.seek(0)
    send(connection, {"died": death(os.waitstatus_to_exitcode(status), output.read())})


def _child(
    connection: socket.socket, run: Callable[[Any], Any], request: dict[str, Any], inherited: frozenset[str], output: int
) -> None:
    """Run the job, answer, and leave without any of the parent's clean-up."""
    code = 1
    # Without the worker nobody would end this job, and its copy of the socket would keep the caller waiting.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        job, environment = request["job"], request["environment"]
        if getattr(job, "script", None) is None:  # a model's chatter is kept for the error message; a script speaks to its user
            os.dup2(output, 1)
            os.dup2(output, 2)
        else:
            os.dup2(2, 1)  # stdout belongs to vramcast's answer
        for name in inherited - environment.keys():
            os.environ.pop(name, None)
        os.environ.update(environment)
        before = set(sys.modules)
        answer = run(job)
        sys.stdout.flush()
        sys.stderr.flush()
        send(connection, (answer, tuple(sorted(name for name in set(sys.modules) - before if _is_warm(name)))))
        code = _ANSWERED
    except BaseException:  # nothing may fall through into the parent's loop
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _is_warm(module: str) -> bool:
    # Inductor asks for the device while it is imported; the worker must not touch CUDA before it forks.
    return module.partition(".")[0] in _WARM_PACKAGES and not module.startswith("torch._inductor")


def main(module: str, fd: int) -> None:
    """Serve jobs with `run_job` of `module`, whose `warm_up` is called first."""
    inherited = frozenset(os.environ)
    served = importlib.import_module(module)
    served.warm_up()
    serve(fd, served.run_job, inherited=inherited, ready=None)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
