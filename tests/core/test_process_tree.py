"""The processes of this machine, from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.core.process_tree import descendants, held_bytes, running

pytestmark = pytest.mark.integration
BUSY = "import time\nuntil = time.process_time() + 0.3\nwhile time.process_time() < until: pass"


def test_counts_time_of_ended_children() -> None:
    before = running()[os.getpid()].ticks
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    used_s = (running()[os.getpid()].ticks - before) / os.sysconf("SC_CLK_TCK")
    assert used_s >= 0.3


def test_lists_living_child() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert running()[child.pid].parent == os.getpid()
        child.communicate(b"\n")


def test_counts_descendants_and_files(tmp_path: Path) -> None:
    own = os.getpid()
    assert held_bytes(own) > 10 << 20
    assert own in descendants(os.getppid())
    usage = os.statvfs(tmp_path)
    assert held_bytes(own, [str(tmp_path)]) > (usage.f_blocks - usage.f_bfree) * usage.f_frsize


def test_ended_process_holds_nothing() -> None:
    assert (held_bytes(2**22), descendants(2**22)) == (0, [])
