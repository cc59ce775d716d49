"""The demo of docs/slurm.md on a real Slurm: controller, nodes, database, munge; skipped where it is not installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "bwrap", "runuser", "curl")
pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="starts Slurm's daemons and jobs of another user: needs root"),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in PROGRAMS) or not Path("/usr/bin/python3").exists(),
        reason=f"needs Debian's slurm-wlm, slurmdbd, munge, mariadb-server, bubblewrap ({', '.join(PROGRAMS)})",
    ),
]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the demo's output."""
    pytest.importorskip("fastapi")
    command = tmp_path_factory.mktemp("bin") / "vramcast"
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m vramcast "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", ROOT / "contrib" / "slurm" / "demo" / "demo.sh", command],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def after(story: str, beginning: str) -> str:
    """Return the part of the output between a heading with this beginning and the next one."""
    return story.split(f"# {beginning}", 1)[1].split("\n# ", 1)[0]


def test_answers_training_command_second_time(needs_null_gpu: None, story: str) -> None:
    assert "no estimate (the estimate is not ready yet)" in after(story, "A training command")
    assert "instead of the whole card" in after(story, "The second time")


def test_two_jobs_share_a_card(needs_null_gpu: None, story: str) -> None:
    shards = re.findall(r"resnet50 RUNNING small gres:shard:(\d+)", after(story, "The same for a job"))
    assert len(shards) == 2
    assert 2 * 3.25 <= sum(map(int, shards)) <= 14


def test_refuses_too_large_job_and_names_partition(needs_null_gpu: None, story: str) -> None:
    refused = after(story, "Too large")
    assert "It fits in partition large" in refused
    assert "No partition has a larger card" in refused
    assert "Submitted" not in refused
    assert "29 of 39 shards" in after(story, "Without a partition")


def test_requeues_failed_job_with_larger_request(needs_null_gpu: None, story: str) -> None:
    again = after(story, "A job needs more")
    (first,), (last,) = (
        [int(number) for number in re.findall(form, again)] for form in (r"(\d+) of 14 shards", r"may take (\d+) MiB")
    )
    assert first * 1024 < 6500 <= last
    assert f"6|resnet50|COMPLETED|billing=1,cpu=1,gres/shard={last // 1024}" in story


def test_unreachable_service_delays_no_job(needs_null_gpu: None, story: str) -> None:
    away = after(story, "The service is down")
    assert "the job is submitted unchanged" in away
    assert "Submitted batch job" in away


def test_service_and_adopt_learn_from_history(needs_null_gpu: None, story: str) -> None:
    assert 'vramcast_coverage{group="share much"}' in story
    assert "sacct.txt: sacct, 15 runs, 0 rows rejected" in story
