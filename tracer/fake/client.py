"""The caller's end of the fake-tensor tracer: one process a job, no GPU, no compiler, any build of torch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from vramcast import errors
from vramcast.errors import JobError, WorkerError
from vramcast.job import Job
from vramcast.tracer.nullgpu.child import Result
from vramcast.tracer.nullgpu.protocol import receive, send

_SAID_BYTES = 4000  # arbitrary: of a dead process's last words


def trace(job: Job, *, timeout_s: float) -> Result:
    """Run `job` on fake tensors in a process of its own and return its result (status ok).

    The card has no end here: play the trace on a simulated one. `ledger` names what was assumed.

    Args:
        job: What to run: a target or a model, no script.
        timeout_s: The process is killed after so many seconds, imports included.
    Raises:
        JobError: the job's own code raised.
        UsageError: the job's description is wrong.
        WorkerError: the process died or ran out of time.
    """
    if job.script is not None:
        raise errors.UsageError("The fake tracer runs models, not scripts: give a TARGET, or use --tracer nullgpu.")
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as output:
        command = [sys.executable, "-m", "vramcast.tracer.fake.main", str(theirs.fileno())]
        environment = {**os.environ, "PYTHONPATH": _python_path(), "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            cwd="/",
        )  # fmt: skip
        theirs.close()
        ours.settimeout(timeout_s)
        try:
            send(ours, job)
            result: Result = receive(ours)
        except TimeoutError:
            raise WorkerError(f"The job did not end within {timeout_s:.0f} s: raise the limit, or trace fewer steps.") from None
        except (EOFError, OSError):
            code = process.wait()
            reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            output.seek(0)
            said = output.read()[-_SAID_BYTES:].decode(errors="replace").strip()
            raise WorkerError(f"The job's process {reason}: see its last output.\n{said}") from None
        finally:
            process.kill()
            process.wait()
    return _checked(result)


def _python_path() -> str:
    """The process must find what the caller finds, also in a checkout that is not installed."""
    import vramcast

    root = str(Path(next(iter(vramcast.__path__))).parent)
    return os.pathsep.join(dict.fromkeys([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))


def _checked(result: Result) -> Result:
    """Return `result`, or raise what it stands for."""
    if result.status != "error":
        return result
    kind = getattr(errors, result.error, JobError)
    if kind is JobError:
        raise JobError(f"The job raised {result.message}", result.job_traceback)
    raise kind(result.message)
