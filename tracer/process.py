"""A job in a process of its own: how the caller starts one, and what becomes of it when it dies, raises or takes too long."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from vramcast import errors
from vramcast.errors import JobError, UsageError, WorkerError
from vramcast.job import Job
from vramcast.tracer.protocol import receive, send
from vramcast.tracer.result import Result

_LAST_OUTPUT_BYTES = 4000  # arbitrary: about a screen


def trace_in_process(module: str, job: Job, *, timeout_s: float, advice: str) -> Result:
    """Send `job` to a fresh `python -m MODULE FD` and return its result (status ok or oom).

    Args:
        module: Reads a `Job` from the socket FD and answers with a `Result`.
        job: What to run; a model, not a script.
        timeout_s: The process is killed after so many seconds, imports included.
        advice: What to do when that happens; ends the sentence "The job did not end within 9 s ...".
    Raises:
        JobError: the job's own code raised.
        UsageError: the job's description is wrong.
        WorkerError: the process died (out of memory?) or ran out of time.
    """
    if job.script is not None:
        name = module.split(".")[-2]
        raise UsageError(f"The {name} tracer runs models, not scripts: use --tracer nullgpu for vramcast run.")
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as output:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/",
                env={**os.environ, "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": ""},
            )  # fmt: skip
        try:
            ours.settimeout(timeout_s)
            send(ours, job)
            return checked(receive(ours))
        except TimeoutError:
            raise WorkerError(f"The job did not end within {timeout_s:.0f} s{advice}") from None
        except (EOFError, ConnectionError):
            code = process.wait()
            output.seek(0)
            raise WorkerError(death(code, output.read())) from None
        finally:
            process.kill()
            process.wait()


def serve(fd: int, run_job: Callable[[Job], Result]) -> NoReturn:
    """Be the process of one job: take it from the socket `fd`, answer, and end."""
    connection = socket.socket(fileno=fd)
    job: Job = receive(connection)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    os.dup2(2, 1)  # what the model prints goes where errors go
    result = run_job(job)
    sys.stdout.flush()
    sys.stderr.flush()
    send(connection, result)
    os._exit(0)  # no clean-up of the job's objects: it takes seconds and may raise


def _end_with(connection: socket.socket) -> None:
    """End this process when the caller's has ended: it sends nothing more."""
    if not connection.recv(1):
        os._exit(1)


def python_path() -> str:
    """Return PYTHONPATH for a process which must find what the caller finds, also in a checkout that is not installed."""
    import vramcast

    root = str(Path(next(iter(vramcast.__path__))).parent)
    return os.pathsep.join(dict.fromkeys([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))


def checked(result: Result) -> Result:
    """Return `result`, or raise what it stands for."""
    if result.status != "error":
        return result
    kind = getattr(errors, result.error, JobError)
    refused = [entry.name for entry in result.ledger if entry.kind == "refused"]
    message = result.message
    if refused:
        message += f" (the null GPU had to refuse: {', '.join(refused)})"
    if kind is JobError:
        raise JobError(f"The job raised {message}", result.job_traceback)
    raise kind(message)


def death(exit_code: int, output: bytes) -> str:
    """Return why a process ended without an answer: its exit code (negative: a signal) and its last words."""
    how = f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
    hint = "it was probably out of memory" if exit_code == -signal.SIGKILL else "see its last output"
    said = output[-_LAST_OUTPUT_BYTES:].decode(errors="replace").strip()
    return f"The job's process {how}: {hint}." + (f"\n{said}" if said else "")
