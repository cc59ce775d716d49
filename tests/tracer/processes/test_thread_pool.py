"""Concurrent jobs: lanes of threads, and the forks of a warm worker that serve them; without torch."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramcast.core.errors import WorkerError
from vramcast.tracer.processes import warm_worker
from vramcast.tracer.processes.thread_pool import in_parallel, lane
from vramcast.tracer.processes.warm_worker import WarmWorker

from .test_warm_worker import CALLS, SLEEPS, ask, number, runs, start, wait_for

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="warm workers fork")


def test_answers_and_errors_keep_order() -> None:
    def work(n: int) -> int:
        time.sleep(0.02 * (5 - n))
        if n == 3:
            raise ValueError("three")
        return n

    answers = in_parallel(work, range(6), lanes=3)
    assert [next(answers) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(answers)


@pytest.mark.parametrize(("lanes", "expected"), [(1, {0}), (3, {0, 1, 2}), (9, {0, 1, 2, 3})])
def test_limits_number_of_lanes(lanes: int, expected: set[int]) -> None:
    together = threading.Barrier(min(lanes, 4))

    def work(_: int) -> int:
        together.wait(20)
        return lane()

    assert set(in_parallel(work, range(4 if lanes != 3 else 3), lanes=lanes)) == expected
    assert lane() == 0


def test_closing_iterator_starts_no_more_items() -> None:
    begun: list[int] = []

    def work(n: int) -> int:
        begun.append(n)
        time.sleep(0.1)
        return n

    answers = in_parallel(work, range(100), lanes=2)
    assert next(answers) == 0
    assert isinstance(answers, Iterator)
    answers.close()  # type: ignore[attr-defined]
    time.sleep(0.3)
    assert len(begun) <= 4


@pytest.fixture
def worker() -> Iterator[WarmWorker]:
    one = start()
    yield one
    one.close()


@on_linux
def test_lanes_use_forks_concurrently(worker: WarmWorker, tmp_path: Path) -> None:
    code = """
import os, pathlib, time
met = pathlib.Path({folder!r})
met.mkdir(exist_ok=True)
(met / "{n}").touch()
while len(list(met.iterdir())) < 3:  # for ever, if one job ran after the other
    time.sleep(0.01)
answer = (os.getppid(), {n})
"""

    def met(name: str, jobs: int) -> list[tuple[int, int]]:
        folder = str(tmp_path / name)
        return list(in_parallel(lambda n: ask(worker, code.format(folder=folder, n=n)), range(jobs), lanes=3))

    answers = met("first", 6)
    assert [n for _, n in answers] == list(range(6))
    pids = {pid for pid, _ in answers}
    assert worker.pid in pids
    assert len(pids) == 3
    assert {pid for pid, _ in met("again", 3)} == pids
    worker.close()
    wait_for(lambda: not any(map(runs, pids)))


@on_linux
def test_lane_starts_worker_if_fork_fails(worker: WarmWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(pid: int) -> None:
        raise OSError(f"no pidfd_open for {pid}")

    monkeypatch.setattr(warm_worker, "_Fork", fails)
    code = "import os, time; time.sleep(0.3); answer = os.getppid()"
    with warnings.catch_warnings(record=True) as leaks:
        warnings.simplefilter("always")
        assert len(set(in_parallel(lambda _: ask(worker, code), range(2), lanes=2))) == 2
        gc.collect()
    assert not leaks


@on_linux
def test_death_in_one_lane_leaves_others_alone(worker: WarmWorker) -> None:
    def work(n: int) -> object:
        if lane() == 1 or n == 0:
            time.sleep(0.1)
        code = "import time; time.sleep(0.5); answer = 1" if lane() else "import os; os.kill(os.getppid(), 9)"
        try:
            return ask(worker, code)
        except WorkerError as error:
            return str(error)

    assert list(in_parallel(lambda _: ask(worker, "import time; time.sleep(0.2); answer = 0"), range(2), lanes=2)) == [0, 0]
    answers = list(in_parallel(work, range(2), lanes=2))
    assert sorted(map(str, answers)) == ["1", "The worker was killed: is the machine out of memory? Try again."]
    assert ask(worker, number(7)) == 7
    assert list(in_parallel(lambda n: ask(worker, number(n)), range(4), lanes=2)) == [0, 1, 2, 3]


@on_linux
@pytest.mark.parametrize("death", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_lanes_end_with_their_caller(tmp_path: Path, death: signal.Signals) -> None:
    import subprocess

    from vramcast.tracer.processes.job_process import python_path

    jobs = [SLEEPS.format(path=str(tmp_path / f"pid{n}")) for n in range(2)]
    code = f"{CALLS}\nfrom vramcast.tracer.processes.thread_pool import in_parallel\njobs = {jobs!r}\n"
    code += "list(in_parallel(lambda job: worker.ask(job, os.environ, timeout_s=600, advice='.'), jobs, lanes=2))"
    environment = {**os.environ, "PYTHONPATH": python_path()}
    caller = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    paths = [tmp_path / f"pid{n}" for n in range(2)]
    wait_for(lambda: all(path.exists() and path.read_text() for path in paths))
    jobs_pids = [int(path.read_text()) for path in paths]
    parents = [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in jobs_pids]
    caller.send_signal(death)
    caller.communicate(timeout=60)
    wait_for(lambda: not any(map(runs, [*jobs_pids, *parents])))
