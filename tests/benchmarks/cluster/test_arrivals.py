"""Tests of job logs: made-up files with the columns of public ones, and jobs drawn from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster import arrivals
from benchmarks.cluster.arrivals import PHILLY, Arrival, Log, RunTimes, read, scaled
from vramcast.core.errors import DatasetError

PODS = """name,cpu_milli,num_gpu,gpu_milli,pod_phase,creation_time,deletion_time,scheduled_time
later,1,1,460,Running,200,900,300
first,1,8,1000,Failed,100,400,150
no gpu,1,0,0,Running,100,400,150
pending,1,1,1000,Pending,100,400,
open,1,1,1000,Running,500,1000,600
days,1,1,1000,Running,0,900,0
too many,1,16,1000,Running,0,100,0
at once,1,1,1000,Failed,0,0,0
damaged,1,one,1000,Running,0,900,0
damaged,1,1,1000,Running,,900,0
short,1,1
"""


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    path = tmp_path / "pods.csv"
    path.write_text(PODS)
    return path


def test_reads_pods_with_reasons_for_others(pods: Path) -> None:
    log = read(pods, longest_s=800)
    assert isinstance(log, Log)
    assert log.jobs == (Arrival(100, 250, 8), Arrival(200, 600))
    assert log.left_out == {
        "damaged": 3,
        "longer than 0.222222 h": 1,
        "never scheduled": 1,
        "of more than 8 GPUs": 1,
        "still running at the end": 1,
        "without a GPU": 1,
        "without a run time": 1,
    }
    lost_s = 900 + 400 + 16 * 100
    assert log.left_out_share == pytest.approx(lost_s / (lost_s + 8 * 250 + 600))


def test_reads_plain_log_and_run_times(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("cards,arrival_s,duration_s\n1,70,5\n2,60,10\n")
    log = read(path)
    assert isinstance(log, Log)
    assert log.jobs == (Arrival(60, 10, 2), Arrival(70, 5))
    path.write_text("runtime\n0.0\n" + "".join(f"{i}\n" for i in range(1, 102)))
    times = read(path)
    assert isinstance(times, RunTimes)
    assert times.quantiles_s == (1, 6, 11, 26, 51, 76, 91, 96, 100, 101)
    assert times.left_out == {"without a run time": 1}


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "runtime\n0\n", "arrival_s,duration_s,cards\n1,nan,1\nx,1,1\n1,1,1.5\n"])
def test_rejects_unknown_format_and_empty_log(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(DatasetError):
        read(path)


@settings(deadline=None)
@given(st.lists(st.text(max_size=30), max_size=8))
def test_reads_or_skips_every_row(tmp_path_factory: pytest.TempPathFactory, rows: list[str]) -> None:
    path = tmp_path_factory.mktemp("log") / "log.csv"
    path.write_text("arrival_s,duration_s,cards\n0,1,1\n" + "\n".join(rows), encoding="utf-8", errors="replace")
    try:
        log = read(path)
    except DatasetError:
        return
    assert isinstance(log, Log)
    assert all(job.at_s >= 0 and 0 < job.duration_s < np.inf and job.cards >= 1 for job in log.jobs)


def test_window_keeps_gaps_and_begins_at_0() -> None:
    log = Log("log", tuple(Arrival(float(i * i), 1.0) for i in range(100)))
    first, second = log.draw(10, 0), log.draw(10, 1)
    assert first == log.draw(10, 0) != second
    assert [len(first), first[0].at_s] == [10, 0]
    assert np.diff(np.diff([job.at_s for job in first])).tolist() == [2.0] * 8
    assert len(log.draw(1000, 0)) == 100


def test_draws_run_times_by_quantiles() -> None:
    jobs = PHILLY.draw(20_000, 0)
    drawn = np.quantile([job.duration_s for job in jobs], arrivals.LEVELS[1:-1])
    assert drawn == pytest.approx(PHILLY.quantiles_s[1:-1], rel=0.1)
    assert [jobs[0].at_s, {job.cards for job in jobs}] == [0, {1}]
    assert jobs == PHILLY.draw(20_000, 0) != PHILLY.draw(20_000, 1)


def test_scales_arrivals_to_load() -> None:
    jobs = [Arrival(0, 100, 2), Arrival(10, 50), Arrival(50, 150)]
    found = scaled(jobs, 4, 2.0)
    assert [job.at_s for job in found] == [0, 10, 50]  # 400 card seconds in 50 s on 4 cards
    assert [job.at_s for job in scaled(jobs, 2, 2.0)] == [0, 20, 100]
    assert scaled([Arrival(0, 1), Arrival(0, 1)], 1, 2.0) == [Arrival(0, 1), Arrival(0, 1)]
    assert scaled([], 1, 2.0) == []


def test_prints_content_of_file(pods: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrivals.main([str(pods)])
    printed = capsys.readouterr().out
    assert printed.startswith("3 jobs by number of cards: {1: 2, 8: 1}\n")
    assert "1 without a GPU" in printed
    assert "| 0.5 | 600 |" in printed
