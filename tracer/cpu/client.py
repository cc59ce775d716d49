"""The caller's end of the CPU tracer: one process for each job, whose failures become errors. Needs no torch here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from vramcast import errors
from vramcast.errors import JobError, WorkerError
from vramcast.job import Job
from vramcast.tracer.nullgpu.child import Result
from vramcast.tracer.nullgpu.protocol import receive, send

_LAST_OUTPUT_BYTES = 4000  # arbitrary: about a screen


def trace(job: Job, *, timeout_s: float = 1800.0) -> Result:
    """Run `job` for real, on the CPU, and return its result (status ok) with the requests a GPU would have seen.

    The trace has no addresses, no segments and no peaks: `vramcast.simulator` says what they come to. Memory and time are
    those of the real job: its weights, gradients, optimizer state and activations in this machine's RAM.

    Args:
        job: What to run; a model, not a script.
        timeout_s: The job is killed after so many seconds.
    Raises:
        JobError: the job's own code raised.
        UsageError: the job's description is wrong.
        WorkerError: its process died (out of memory?) or ran out of time.
    """
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as output:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "vramcast.tracer.cpu.main", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], env=_environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            ours.settimeout(timeout_s)
            send(ours, job)
            return _checked(receive(ours))
        except TimeoutError:
            raise WorkerError(
                f"The job did not end within {timeout_s:.0f} s on the CPU: raise the limit, or trace a smaller batch."
            ) from None
        except (EOFError, ConnectionError):
            raise WorkerError(_death(process, output)) from None
        finally:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """Return this process's environment; the child must find what the caller finds, also in a checkout."""
    import vramcast

    root = str(Path(next(iter(vramcast.__path__))).parent)
    path = dict.fromkeys([*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), root])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "CUDA_VISIBLE_DEVICES": ""}


def _checked(result: Result) -> Result:
    """Return `result`, or raise what it stands for."""
    if result.status != "error":
        return result
    kind = getattr(errors, result.error, JobError)
    if kind is JobError:
        raise JobError(f"The job raised {result.message}", result.job_traceback)
    raise kind(result.message)


def _death(process: subprocess.Popen[bytes], output: IO[bytes]) -> str:
    code = process.wait()
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    hint = "it was probably out of memory" if code == -signal.SIGKILL else "see its last output"
    output.seek(0)
    said = output.read()[-_LAST_OUTPUT_BYTES:].decode(errors="replace").strip()
    return f"The job's process {how}: {hint}." + (f"\n{said}" if said else "")
