"""One training command three ways in forks of one warm process, for `benchmarks.speed.limit`: prints a line of JSON for each.

    python -m benchmarks.speed.ways CARD STEPS SECONDS WORD...

bare      on the null GPU, nothing watched; stopped after as many calls of optimizers as the followed one made
recorder  with the recorder: history, operators, modules
follower  the same, and the values followed on the host, as `vramcast run` does

Only the steps are followed: `--until steps`. Short scripts run several times, and the fastest run of each way counts, as other
programs make runs longer. A stage's CPU time is that of the process and of the processes it waited for.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.speed.adoption import watched as memory_watched
from vramcast.core.location import import_root
from vramcast.hardware.cards import device
from vramcast.jobs.text import JobText
from vramcast.tracer.nullgpu.library.build import build, build_watcher, find_torch
from vramcast.tracer.nullgpu.library.loader import NullGpu
from vramcast.tracer.processes.job_process import job_environment
from vramcast.tracer.protocol.job_result import peak_resident_bytes
from vramcast.tracer.protocol.messages import LENT
from vramcast.tracer.protocol.run_options import RunOptions

WAYS: Final = ("follower", "recorder", "bare")
_REPEATED_S: Final = 10.0  # arbitrary: CPU seconds in which a script is run again: other programs make a run longer
STAGES: Final = ("start", "steps", "end")  # up to the first call of an optimizer, to the last one, and the processing


def cpu_s() -> float:
    """Return the CPU time of this process and of those it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Marks:
    """The CPU times at which the stages end.

    Args:
        most: Calls of optimizers after which the job is stopped; 0: it is not stopped here.
    """

    def __init__(self, most: int) -> None:
        self.began = self.first = self.last = cpu_s()
        self.calls, self._most = 0, most

    def stepped(self, *_: Any) -> None:
        """Note a call of an optimizer."""
        from vramcast.tracer.program.training_loop import StopJob

        self.calls, self.last = self.calls + 1, cpu_s()
        if self.calls == 1:
            self.first = self.last
        if self.calls == self._most:
            raise StopJob

    def stages(self) -> dict[str, float]:
        """Return the CPU seconds of each stage; all belongs to the first if no optimizer was called."""
        marks = (self.began, self.first, self.last, cpu_s())
        return {stage: after - before for stage, before, after in zip(STAGES, marks, marks[1:], strict=False)}


def run(way: str, words: list[str], card: str, steps: int, calls: int) -> dict[str, Any]:
    """Run the command in this process, which is a fork of its own, and return what it took."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from vramcast.tracer.nullgpu.child import main as child
    from vramcast.tracer.nullgpu.child import observer
    from vramcast.tracer.nullgpu.child.subprocesses import SharedFolder

    job = JobText.of({"command": words, "until": "steps", "steps": steps}).job(device(card))
    options, torch = RunOptions(limited=False), find_torch()
    watched: Any = observer.ProcessObserver
    init = watched.__init__

    def without_values(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self.values = None

    if way != "follower":
        watched.__init__ = without_values
    if way == "bare":
        watched.begin = watched.end = watched.complete = lambda self, *arguments, **named: None
    marks = Marks(calls if way == "bare" else 0)
    register_optimizer_step_post_hook(marks.stepped)
    root, libraries = str(import_root()), build(torch)
    with (
        tempfile.TemporaryDirectory() as cache,  # what one way compiles does not help the next
        SharedFolder.made(job, options, libraries=libraries, torch=torch.lib.parent / "__init__.py", root=root) as shared,
        memory_watched(os.getpid(), every_s=0.05) as peak,
    ):
        os.environ |= {LENT: str(shared.folder), "VRAMCAST_CACHE": cache}
        found = child.run_job(job, options, _GPU)
    return {
        "way": way, "status": found.status, "message": found.message[-300:], "calls": marks.calls,
        "bytes": max(peak.size_bytes, peak_resident_bytes()),
        **marks.stages(),
    }  # fmt: skip


def _total_s(found: dict[str, Any]) -> float:
    return sum(float(found[stage]) for stage in STAGES)


def forked(work: Callable[[], dict[str, Any]], limit_s: float) -> dict[str, Any]:
    """Return the result of `work` in a fork, with its output on stderr; "status" says why there is none."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(2, 1)
        try:
            os.write(sink, json.dumps(work()).encode())
        except BaseException as error:
            os.write(sink, json.dumps({"status": "error", "message": f"{type(error).__name__}: {error}"[-300:]}).encode())
        finally:
            os._exit(0)
    os.close(sink)

    def late(*_: Any) -> None:
        os.killpg(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, late)
    signal.alarm(round(limit_s))
    with open(source, "rb") as file:
        said = file.read()
    signal.alarm(0)
    os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what it left behind
    return json.loads(said) if said else {"status": "error", "message": f"no answer within {limit_s:.0f} s"}


def main() -> None:
    """Run the command each way."""
    card, steps, limit_s, words = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    import torch  # noqa: F401  as in the worker, so that no way pays for it, nor for looks at what was imported

    from vramcast.tracer.hooks import absent_dynamo
    from vramcast.tracer.nullgpu.child import main as child  # noqa: F401
    from vramcast.tracer.program import model_program  # noqa: F401
    from vramcast.tracer.recording import recorder, watcher  # noqa: F401
    from vramcast.tracer.values import follower, gate  # noqa: F401

    absent_dynamo.stand_in()
    watcher.load(os.environ.get(watcher.LIBRARY, ""))
    gate.load()
    gc.freeze()
    calls, best, left_s = 0, dict[str, dict[str, Any]](), _REPEATED_S
    while not best or left_s > 0:
        for way in WAYS:
            found = forked(functools.partial(run, way, words, card, steps, calls), limit_s)
            calls = calls or found.get("calls", 0)
            if found["status"] != "ok":
                print(json.dumps({"way": way, **found}), flush=True)
                return
            left_s -= _total_s(found)
            best[way] = min(best.get(way, found), found, key=_total_s)
    for way in WAYS:
        print(json.dumps({"way": way, **best[way]}), flush=True)


if __name__ == "__main__":
    os.environ.update(job_environment())
    os.environ |= {"NULLGPU_CUDNN_SOCKET": "", "KINETO_LOG_LEVEL": "99"}
    os.environ["NULLGPU_WATCHER"] = str(build_watcher(find_torch()))
    _GPU: Final = NullGpu(Path(build(find_torch())))  # before torch
    main()
