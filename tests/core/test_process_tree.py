"""What /proc tells of this machine's processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vramcast.core.process_tree import running

pytestmark = pytest.mark.integration
BUSY = "import time\nuntil = time.process_time() + 0.3\nwhile time.process_time() < until: pass"


def test_the_time_of_children_which_have_ended_counts_for_their_parent() -> None:
    before = running()[os.getpid()].ticks
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    used_s = (running()[os.getpid()].ticks - before) / os.sysconf("SC_CLK_TCK")
    assert used_s >= 0.3


def test_a_child_which_lives_is_its_parent_s() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert running()[child.pid].parent == os.getpid()
        child.communicate(b"\n")
