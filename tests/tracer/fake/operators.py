"""Runner of the survey's operators on the fake card: one warm process, which forks for each of them.

    python operators.py ANSWERS [NAME ...]   writes {name: Result} to the file ANSWERS, as a pickle; all names without any
    python operators.py --here NAME          runs one on the present CUDA device, for example on the null GPU

The slow part, importing torch, is done once.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LONGEST_CPU_S = 60  # arbitrary: far above any operator


def main(answers: Path, names: list[str]) -> None:
    """Run the operators called `names`, or all, and write their results."""
    import survey_operators

    from vramcast.tracer.fake.main import warm_up

    warm_up()
    devices = {name: job.device for name, job, _ in survey_operators.jobs()}
    results = {name: _forked(name, devices[name], survey_operators._PROBES[name]) for name in names or devices}
    answers.write_bytes(pickle.dumps(results))


def _forked(name: str, device: Any, program: Callable[[], Any]) -> Any:
    """Return the `Result` of `program` on the card `device`, run in a process of its own; a text if that died."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        signal.setitimer(signal.ITIMER_PROF, _LONGEST_CPU_S)  # CPU time: other programs may have the core
        try:
            answer = pickle.dumps(_run(name, device, program))
            with os.fdopen(write, "wb") as pipe:
                pipe.write(answer)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return pickle.loads(answer) if answer else f"died: {status}"


def _run(name: str, device: Any, program: Callable[[], Any]) -> Any:
    from vramcast.jobs.job import Job, Training
    from vramcast.tracer.fake.main import run_job
    from vramcast.tracer.protocol.run_options import RunOptions

    under_autocast = "amp" in name or name == "GradScaler"
    training = Training(precision="amp-bf16" if under_autocast else "fp32")
    return run_job(Job(device, target=name, training=training), RunOptions(), program)


def run_here(name: str) -> None:
    """Run one operator; cuDNN answers only for attention, because convolution workspaces are compared elsewhere."""
    if not name.startswith("sdpa"):
        os.environ.pop("NULLGPU_CUDNN_SOCKET", None)
    import survey_operators

    survey_operators._PROBES[name]()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "surveys"))
    if sys.argv[1] == "--here":
        run_here(sys.argv[2])
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
