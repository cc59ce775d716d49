"""Processes that a job starts: they have the null GPU, and the largest one becomes the result."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vramcast.hardware.cards import device
from vramcast.jobs.job import Job
from vramcast.jobs.text import JobText
from vramcast.tracer.format.ledger import CallHandling, Entry
from vramcast.tracer.format.rank_facts import ProcessPeak, beside_bytes, processes_of
from vramcast.tracer.format.trace import COURSE, INTERRUPTED, TIME_UP, Trace
from vramcast.tracer.nullgpu.child import subprocesses
from vramcast.tracer.nullgpu.child.lifetimes import Life
from vramcast.tracer.nullgpu.child.subprocesses import Process, SharedFolder, let_follow
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.messages import LENT

# Trains a layer of the given width, and fails if it is not stopped.
TRAIN = """
    import importlib.util, os, sys

    importlib.util.find_spec("torch")  # vLLM looks for it before it imports it
    import torch

    def main(rank, width):
        model = torch.nn.Linear(width, width, bias=False).cuda()
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        for _ in range(50):
            model(torch.ones(1, width, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        sys.exit("it was not stopped")

    if __name__ == "__main__":
        main(0, int(sys.argv[1]))
"""
# Trains in a fork, in a spawned process and in one of a command line, each wider than the one before.
STARTS = """
    import multiprocessing, subprocess, sys
    import torch
    from train import main

    if __name__ == "__main__":
        fork = multiprocessing.get_context("fork").Process(target=main, args=(0, 1024))
        fork.start()
        fork.join()
        assert fork.exitcode == 0, fork.exitcode
        torch.multiprocessing.spawn(main, args=(1536,))
        subprocess.run([sys.executable, "train.py", "2048"], check=True)
        subprocess.run([sys.executable, "-c", "import sys; assert 'vramcast' not in sys.modules"], check=True)
"""


def _result(reserved: int, status: str = "ok", steps: int = 3, touched_s: float = 0.0) -> Result:
    columns: dict[str, list[int]] = {"action": [], "size_bytes": [], "block": [], "address": []}
    trace = Trace.build(columns, header={"peaks": {"reserved": reserved}})
    return Result(status, trace=trace if reserved >= 0 else None, steps=steps, touched_s=touched_s)


class _Left(SharedFolder):
    """A shared folder with these recorded processes."""

    def __init__(self, *processes: Process) -> None:
        super().__init__(Path())
        self._processes = list(processes)

    def processes(self) -> list[Process]:
        return self._processes


def test_returns_process_with_most_reserved() -> None:
    left = _Left(Process("a.py", _result(100 << 20)), Process("b.py", _result(300 << 20)), Process("c.py", _result(0)))
    found = left.fullest(_result(200 << 20), ["train.py"])
    assert found.trace is not None
    assert found.trace.header["peaks"]["reserved"] == 300 << 20
    (note,) = found.notes
    assert "3 processes used the card" in note
    assert "'b.py'" in note
    assert "together they reserved 600.0 MiB" in note
    own = left.fullest(_result(400 << 20), ["train.py"])
    assert "the estimate is for the job's own process" in own.notes[0]


def test_concurrent_processes_count_together() -> None:
    parent = _result(100, touched_s=5.0)
    first = Process("first", _result(900), Life(11, 0.0, 4.0))  # it ends before the parent touches the card
    second = Process("second", _result(300), Life(12, 6.0, 8.0))
    third = Process("third", _result(500), Life(13, 7.0, 9.0))
    found = _Left(second, third).fullest(parent, ["train.py"])
    assert found.trace is not None
    assert processes_of(found.trace) == (
        ProcessPeak("third", 500, is_at_once=True),
        ProcessPeak("second", 300, is_at_once=True),
        ProcessPeak("train.py", 100, is_at_once=True),
    )
    assert beside_bytes(found.trace) == 400
    alone = _Left(first, second).fullest(parent, ["train.py"])
    assert alone.trace is not None
    assert [one.is_at_once for one in processes_of(alone.trace)] == [True, False, False]
    assert beside_bytes(alone.trace) == 0
    crowded = _Left(first, second, third).fullest(parent, ["train.py"], context_bytes=1)
    assert crowded.trace is not None
    assert crowded.trace.header["peaks"]["reserved"] + beside_bytes(crowded.trace) == 900


def test_counts_process_with_only_a_context() -> None:
    worker = _result(0)
    worker.ledger = [Entry(CallHandling.CONTEXT, "0", 1)]
    found = _Left(Process("worker", worker)).fullest(_result(1), ["train.py"])
    assert found.trace is not None
    assert [one.reserved for one in processes_of(found.trace)] == [1, 0]


def test_unreaped_process_counts_as_alive() -> None:
    """Overlap a process that was cut short with the next one: it ended early here, but on a card it would still run."""
    cut = Process("first", _result(300), Life(11, 1.0, 2.0))
    for others, together in ((frozenset({11}), 700), (frozenset(), 400)):
        later = Process("second", _result(400), Life(12, 3.0, 4.0, others))
        found = _Left(cut, later).fullest(_result(0), ["train.py"])
        assert found.trace is not None
        assert found.trace.header["peaks"]["reserved"] + beside_bytes(found.trace) == together


def test_job_without_other_processes_keeps_result() -> None:
    own = _result(1)
    assert _Left().fullest(own, ["train.py"]) is own
    assert _Left(Process("loader", _result(0))).fullest(own, ["train.py"]) is own


def test_returns_process_if_job_failed() -> None:
    failed = _result(-1, "error", steps=0)
    assert _Left().fullest(failed, ["train.py"]) is failed
    assert _Left(Process("a.py", _result(100))).fullest(failed, ["train.py"]).status == "ok"
    assert _Left(Process("a.py", _result(100, "oom"))).fullest(failed, ["train.py"]).status == "oom"


@pytest.mark.parametrize("why", ["", INTERRUPTED, f"{TIME_UP} after 9 s"])
@pytest.mark.parametrize("itself", ["", "it raised ValueError"])
def test_stopped_process_ended_as_the_job_did(why: str, itself: str) -> None:
    def result(reserved: int, ended: str) -> Result:
        found = _result(reserved)
        assert found.trace is not None
        return replace(found, trace=replace(found.trace, header={**found.trace.header, COURSE: {"ended": ended}}))

    for ask in (SharedFolder.only, lambda left, own: left.fullest(own, ["serve.py"])):
        found = ask(_Left(Process("engine", result(100, itself or INTERRUPTED))), result(0, why))
        assert found.trace is not None
        assert found.trace.header[COURSE]["ended"] == (itself or why)


def test_names_unrecorded_process() -> None:
    damaged = Result("error", error="JobError", message="raised OSError: no space")
    for left in (_Left(Process("b.py", damaged)), _Left(Process("a.py", _result(300)), Process("b.py", damaged))):
        notes = left.fullest(_result(200), ["train.py"]).notes
        assert "1 processes used the card and could not be recorded" in notes[0]
        ledger = left.fullest(_result(200), ["train.py"]).ledger
        assert Entry(CallHandling.OPEN, "the process 'b.py' raised OSError: no space", 1) in ledger
        assert "'b.py' raised OSError: no space" in notes[0]
    nothing = _Left(Process("b.py", damaged)).fullest(_result(0), ["train.py"])
    assert (nothing.status, nothing.error) == ("error", "JobError")
    assert nothing.message == "has a process that was not recorded: 'b.py' raised OSError: no space"


def test_follows_only_requested_jobs() -> None:
    environment = {"PYTHONPATH": f"{os.pathsep}/mine"}
    let_follow(environment)
    assert environment == {"PYTHONPATH": f"{os.pathsep}/mine"}
    environment[LENT] = "/folder"
    for _ in range(2):
        let_follow(environment)
    first, *rest = environment["PYTHONPATH"].split(os.pathsep)
    assert (first, rest) == (str(subprocesses._STARTUP), ["/mine"])


@pytest.mark.integration
def test_runs_sitecustomize_of_user(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine', __name__)")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(subprocesses._STARTUP), str(tmp_path)]),
        LENT: "/absent",
    }
    code = "import sys, json; print(sys.modules['sitecustomize'].__file__)"
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["mine sitecustomize", str(tmp_path / "sitecustomize.py")]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """Return a function that makes the job of a command in a folder with these scripts."""
    for name, text in (("train.py", TRAIN), ("starts.py", STARTS)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return lambda *command, **options: JobText(command=command, **options).job(device("rtx4090"))


def _peaks(result: Result) -> dict[str, int]:
    assert result.trace is not None
    return dict(result.trace.header["peaks"])


def test_all_kinds_of_processes_have_card(tracer: Callable[[], NullGpuTracer], job: Callable[..., Job]) -> None:
    alone = tracer().trace(job("train.py", "2048", until="steps"))
    found = tracer().trace(job("starts.py", until="steps"))
    assert _peaks(found) == _peaks(alone)
    assert found.steps == alone.steps == 3
    assert "3 processes used the card, 1 of them at once: the estimate is for the process 'train.py 2048'" in found.notes[0]
    assert found.trace is not None
    assert beside_bytes(found.trace) == 0  # one after the other


def test_follows_exec_of_other_program(tracer: Callable[[], NullGpuTracer], job: Callable[..., Job]) -> None:
    """Replace the program, as launchers and scripts that restart themselves do: the job ended without a result."""
    code = "import os, sys; os.execlp(sys.executable, sys.executable, 'train.py', '1024')"
    found = tracer().trace(job("python", "-c", code, until="steps"))
    assert (found.status, found.steps) == ("ok", 3)
    assert "the estimate is for the process 'train.py 1024'" in found.notes[0]


def test_process_on_too_small_card_is_oom(tracer: Callable[[], NullGpuTracer], job: Callable[..., Job]) -> None:
    code = "import subprocess as s, sys; s.run([sys.executable, 'train.py', '8192'])"
    found = tracer().trace(job("python", "-c", code, memory="600MiB", until="steps"))
    assert found.status == "oom"


# Fails if a value is unknown, or a checkpoint would remain, in a process of each kind; the last one is killed.
KNOWS = """
    import multiprocessing, os, subprocess, sys
    import torch

    def main(name, is_killed=False):
        with torch.device("cuda"):  # CUDA is touched by the call itself
            numbers = torch.arange(10)
        assert numbers.sum().item() == 45
        torch.save({"zeros": torch.zeros(1 << 20, device="cuda")}, "mine.pt")
        torch.save({"zeros": torch.zeros(1 << 20, device="cuda")}, name)
        if is_killed:
            os.kill(os.getpid(), 9)

    if __name__ == "__main__":
        if sys.argv[1:]:
            sys.exit(main(sys.argv[1], is_killed=True))
        for way in ("fork", "spawn"):
            process = multiprocessing.get_context(way).Process(target=main, args=(f"{way}.pt",))
            process.start()
        process.join()
        assert process.exitcode == 0, process.exitcode
        subprocess.run([sys.executable, "knows.py", "started.pt"])
"""


def test_values_and_files_are_safe_in_all_processes(
    tracer: Callable[[], NullGpuTracer], job: Callable[..., Job], tmp_path: Path
) -> None:
    (tmp_path / "knows.py").write_text(textwrap.dedent(KNOWS))
    (tmp_path / "mine.pt").write_bytes(b"of a real run")
    found = tracer().trace(job("knows.py", until="steps"))
    assert found.status == "ok", found.message
    lost, many = found.notes
    assert "1 processes used the card and could not be recorded" in lost
    assert "'knows.py started.pt' was killed before it reported its memory" in lost
    assert "2 processes used the card" in many
    assert (tmp_path / "mine.pt").read_bytes() == b"of a real run"
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["mine.pt", "started.pt"]


# Trains four steps, then its time is up while it waits.
SLOW = """
    import threading, time
    import train

    def steps(n):
        yield from range(4)
        for timer in threading.enumerate():
            if isinstance(timer, threading.Timer):
                timer.function(*timer.args)
        time.sleep(600)

    train.range = steps
    train.main(0, 512)
"""


def test_time_limit_keeps_recorded_steps(tracer: Callable[[], NullGpuTracer], job: Callable[..., Job], tmp_path: Path) -> None:
    """Let the process's own timers ring after four steps: how far it comes in some seconds depends on the machine."""
    (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW))
    found = tracer().trace(job("python", "-c", "import subprocess as s, sys; s.run([sys.executable, 'slow.py'])", until="end"))
    assert found.trace is not None
    assert "its time was up after" in found.trace.header[COURSE]["ended"]
    assert found.steps == 4
