"""The warm worker of the null GPU: loads it and torch, and forks a fresh child for every job.

python -m vramcast.tracer.nullgpu.worker LIBRARIES FD
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from vramcast.tracer.nullgpu.library.loader import NullGpu
from vramcast.tracer.processes.fork_server import Run, serve
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions


def main(libraries: Path, fd: int) -> NoReturn:
    """Serve `Job`s and `Program`s until the caller closes its end."""

    def warm_up() -> tuple[Run, Any]:
        gpu = NullGpu(libraries)
        import torch

        from vramcast.tracer.hooks import absent_dynamo

        # Imported before the fork, so that no job pays for it; a job's other imports are preloaded for the next one.
        from vramcast.tracer.nullgpu import cuda_guard
        from vramcast.tracer.nullgpu.child import main as child
        from vramcast.tracer.program import model_program  # noqa: F401
        from vramcast.tracer.recording import watcher
        from vramcast.tracer.values import gate

        absent_dynamo.stand_in()
        watcher.load(os.environ.get(watcher.LIBRARY, ""))
        gate.load()
        release = cuda_guard.hold()

        def run(job: Any, options: RunOptions = AS_USUAL) -> Any:
            release()
            if isinstance(job, child.Program):
                return child.run_program(job, gpu)
            return child.run_job(job, options, gpu)

        return run, str(torch.__version__)  # not torch's own class, which would make the caller import torch

    serve(fd, warm_up)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
