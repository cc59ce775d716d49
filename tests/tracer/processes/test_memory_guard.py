"""The guard of main memory: which processes count, when it ends a job, and what it says."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.errors import JobError
from vramcast.core.process_tree import descendants
from vramcast.estimates.estimator import Estimator
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job
from vramcast.jobs.text import JobText
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.processes import memory_guard
from vramcast.tracer.processes.memory_guard import MemoryGuard

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
MIB, GIB = 1 << 20, 1 << 30
# Fills main memory without end, in one of several ways; on one card, after a training step.
WAYS = {
    "slowly": """
        import torch
        def fill():
            kept = []
            while True:
                kept.append(torch.ones(16 << 20))
        torch.nn.Linear(8, 8).cuda()(torch.ones(1, 8, device="cuda")).sum().backward()
        fill()
    """,
    "in one call": """
        import torch
        def fill():
            torch.empty(16 << 30, dtype=torch.uint8).fill_(1)
        fill()
    """,
    "in a fork": """
        import multiprocessing
        def fill():
            kept = []
            while True:
                kept.append(bytearray(16 << 20))
        one = multiprocessing.Process(target=fill)
        one.start()
        one.join()
    """,
    "in another program": """
        import subprocess, sys
        def fill():
            subprocess.run([sys.executable, "-c", "kept = []\\nwhile True: kept.append(bytearray(16 << 20))"])
        fill()
    """,
    "and catches everything": """
        def fill():
            kept = []
            while True:
                try:
                    kept.append(bytearray(16 << 20))
                except BaseException:
                    pass
        fill()
    """,
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Job]:
    """Return a function that makes the job of a script."""
    monkeypatch.chdir(tmp_path)

    def make(source: str) -> Job:
        (tmp_path / "train.py").write_text(textwrap.dedent(source))
        return JobText(command=("train.py",)).job(device("t4"))

    return make


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that holds half a GiB until its input ends."""
    code = "import sys; held = bytearray(512 << 20); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        yield one
        one.kill()


def others(child: subprocess.Popen[bytes]) -> set[int]:
    """Return what runs below this process besides a child: workers of earlier tests."""
    return {*descendants(os.getpid())} - {child.pid}


@pytest.mark.parametrize("way", WAYS)
def test_ends_job_with_number_line_and_way_out(tracer: object, job: Callable[[str], Job], way: str) -> None:
    with pytest.raises(JobError) as raised:
        Estimator(device="t4", host_memory="1GiB").estimate_job(job(WAYS[way]))
    assert raised.value.is_of_machine
    said = str(raised.value)
    assert said.startswith("The job took 1.")
    assert "train.py:" in said
    assert "in fill" in said
    assert "may take 1.00 GiB (--host-memory). Raise the limit (--host-memory), take a larger machine" in said


@pytest.mark.release
def test_many_jobs_end_beside_one_that_goes_on(tracer: object, job: Callable[[str], Job], tmp_path: Path) -> None:
    """Twenty jobs would take 200 GB; a job of another caller goes on, and no worker is lost."""
    (tmp_path / "other.py").write_text(
        "import time, torch\nkept = torch.ones(32 << 20)\nwhile not __import__('os').path.exists('over'): time.sleep(0.1)\n"
        "torch.nn.Linear(8, 8).cuda()\n"
    )
    words = [sys.executable, "-m", "vramcast", "run", "--until", "end", "--", "other.py"]
    other = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    greedy, pid = (
        job(WAYS["in one call"].replace("16 << 30", "200 << 30").replace("empty", "zeros")),
        NullGpuTracer.shared().pid,
    )
    for _ in range(20):
        with pytest.raises(JobError, match="--host-memory"):  # the kernel may refuse so much at once
            Estimator(device="t4", host_memory="1GiB").estimate_job(greedy)
    for _ in range(5):
        with pytest.raises(JobError):
            Estimator(device="t4", host_memory="1GiB").estimate_job(job(WAYS["slowly"]))
    assert NullGpuTracer.shared().pid == pid
    (tmp_path / "over").touch()
    said, errors = other.communicate(timeout=600)
    assert other.returncode == 0, said + errors


@pytest.mark.parametrize("name", ["nullgpu", "fake", "cpu"])
def test_guards_every_tracer(tracer: object, tmp_path: Path, name: str) -> None:
    (tmp_path / "greedy.py").write_text(
        textwrap.dedent(
            """
            import torch

            class Greedy(torch.nn.Linear):
                def forward(self, x):
                    kept = []
                    while True:
                        kept.append(bytearray(16 << 20))

            def model():
                return Greedy(8, 8)
            """
        )
    )
    greedy = JobText(target=f"{tmp_path / 'greedy.py'}:model", batch=("4x8",)).job(device("t4"))
    with pytest.raises(JobError, match=r"greedy\.py:8, in forward"):
        Estimator(tracer=name, host_memory=GIB).estimate_job(greedy)


def test_reports_memory_of_job(tracer: object, job: Callable[[str], Job]) -> None:
    held = "import time, torch\ntorch.nn.Linear(8, 8).cuda()\nkept = torch.ones(64 << 20)\ntime.sleep(1)\n"
    host = Estimator().estimate_job(job(held)).to_dict()["host"]
    assert 256 * MIB <= host["of_job_bytes"] < 400 * MIB
    assert host["peak_bytes"] > host["of_job_bytes"] + 50 * MIB


def test_refused_allocation_names_way_out(tracer: object, job: Callable[[str], Job]) -> None:
    with pytest.raises(JobError, match=r"(?s)train\.py:2, in <module>.* Raise the limit \(--host-memory\)"):
        Estimator().estimate_job(job("import numpy\nnumpy.ones(1 << 50)\n"))


@pytest.mark.parametrize("scarce", [0, GIB])
def test_leaves_a_share_of_what_is_available(child: Any, monkeypatch: pytest.MonkeyPatch, scarce: int) -> None:
    monkeypatch.setattr(memory_guard, "_SCARCE_BYTES", scarce)
    # A fifth of 660 MiB, and of 640 MiB; or as much as it holds itself.
    for left, is_over in ((140 * MIB, False), (120 * MIB, True)) if not scarce else ((600 * MIB, False), (500 * MIB, True)):
        monkeypatch.setattr(memory_guard, "available_bytes", lambda left=left: left)
        ended: list[int] = []
        guard = MemoryGuard(None, others(child), lambda ended=ended: ended.append(1))  # type: ignore[misc]
        guard.start()
        if is_over:
            guard.join()
        guard.close()
        assert bool(ended) == bool(guard.said) == is_over
        assert 512 * MIB <= guard.peak_bytes < 560 * MIB


def test_limit_of_user_leaves_less(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_guard, "available_bytes", lambda: 120 * MIB)
    monkeypatch.setattr(memory_guard, "_SCARCE_BYTES", 0)
    guard = MemoryGuard(GIB, others(child), lambda: None)
    guard.start()
    guard.close()
    assert not guard.said


def test_other_processes_do_not_count(child: Any) -> None:
    guard = MemoryGuard(MIB, descendants(os.getpid()), lambda: None)
    guard.start()
    guard.close()
    assert (guard.peak_bytes, guard.said) == (0, "")


def test_pages_of_several_processes_count_once() -> None:
    code = """
        import os, time
        from vramcast.tracer.processes.memory_guard import MemoryGuard

        if os.fork() == 0:
            held = bytearray(300 << 20)
            for _ in range(3):
                if os.fork() == 0:
                    break
            time.sleep(600)
        guard = MemoryGuard(700 << 20, (), lambda: None)
        guard.start()
        time.sleep(1)
        guard.close()
        print(guard.peak_bytes, guard.said)
        os.killpg(0, 9)
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, start_new_session=True, env=os.environ, check=False)
    peak, _, said = done.stdout.strip().partition(" ")
    assert not said
    assert int(peak) < 400 * MIB
