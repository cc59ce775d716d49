"""The warm worker: a process which has loaded the null GPU and torch, and forks a fresh child for every job.

One job, one process: what an earlier job left in the allocator would move the numbers of the next. Forking after the
import keeps the price of that at milliseconds.

    python -m vramcast.tracer.nullgpu.worker FD LIBRARIES

Messages on the socket FD (see protocol.py):
    request   {"job": Job or RawRequests, "preload": [module, ...], "environment": {...}}
              or nothing more: the client is gone, the worker ends
    answer    {"ready": ...} once; then for each request {"pid": ...} and a `Result`, a list of `RawResult` or {"died": text}
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from vramcast.tracer.nullgpu.load import NullGpu
from vramcast.tracer.process import death
from vramcast.tracer.protocol import receive, send

_ANSWERED = 77  # arbitrary: not 0, with which a job's own os._exit(0) would pass for an answer
_PR_SET_PDEATHSIG = 1  # spec: Linux prctl(2)


def main(fd: int, libraries: Path) -> None:
    """Serve requests until the client closes its end."""
    connection = socket.socket(fileno=fd)
    gpu = NullGpu(libraries)
    import torch

    # Imported before the fork, so that no job pays for it.
    import vramcast.tracer.nullgpu.child
    import vramcast.tracer.record
    import vramcast.tracer.step  # noqa: F401

    gc.freeze()
    send(connection, {"ready": torch.__version__})
    while True:
        try:
            request = receive(connection)
        except EOFError:
            return
        for package in request["preload"]:
            if package not in sys.modules:
                with contextlib.suppress(Exception):  # made by hand, or a sub-module of something that is not importable
                    importlib.import_module(package)
        os.environ.update(request["environment"])
        _serve(connection, gpu, request["job"])


def _serve(connection: socket.socket, gpu: NullGpu, job: Any) -> None:
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        sys.stderr.flush()
        told, tell = os.pipe()  # both processes write to the socket: the child waits until the parent has
        pid = os.fork()
        if pid == 0:
            os.close(tell)
            os.read(told, 1)
            os.close(told)
            _child(connection, gpu, job, output.fileno())
        os.close(told)
        send(connection, {"pid": pid})
        os.close(tell)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _ANSWERED:
            return
        output.seek(0)
        send(connection, {"died": death(os.waitstatus_to_exitcode(status), output.read())})


def _child(connection: socket.socket, gpu: NullGpu, job: Any, output: int) -> None:
    """Run the job, answer, and leave without any of the parent's clean-up."""
    code = 1
    # Without the worker nobody would end this job, and its copy of the socket would keep the client waiting.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if getattr(job, "script", None) is None:  # a model's chatter is kept for the error message; a script speaks to its user
            os.dup2(output, 1)
            os.dup2(output, 2)
        else:
            os.dup2(2, 1)  # stdout belongs to vramcast's answer
        from vramcast.tracer.nullgpu import child, raw

        answer = child.run_raw(job, gpu) if isinstance(job, raw.RawRequests) else child.run_job(job, gpu)
        sys.stdout.flush()
        sys.stderr.flush()
        send(connection, answer)
        code = _ANSWERED
    except BaseException:  # nothing may fall through into the parent's loop
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
