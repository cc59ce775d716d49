"""Main memory: what processes hold, and what a machine and its control groups leave."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import pytest

from vramcast.core import main_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 1 << 20


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of this process's control group, of version 2, in another one."""
    folder = tmp_path / "slice" / "job"
    folder.mkdir(parents=True)
    monkeypatch.setattr(main_memory, "own_group", lambda: (folder, 2))
    return folder


def limited(folder: Path, most: str, now: int, dropped: int) -> None:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{now}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {dropped}\nactive_file 7\n")


def test_own_memory_counts_once() -> None:
    before = main_memory.kept_bytes(os.getpid())
    # Pages of its own: malloc may hand out memory that an earlier test freed, which counts already.
    held = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for _ in range(64):
        held.write(bytes(MIB))
    assert 60 * MIB < main_memory.kept_bytes(os.getpid()) - before < 70 * MIB
    exact = main_memory.kept_bytes(os.getpid(), is_exact=True)
    assert len(held) < exact < before + 70 * MIB


def test_ended_process_holds_nothing() -> None:
    assert main_memory.kept_bytes(2**22 + 1) == main_memory.kept_bytes(2**22 + 1, is_exact=True) == 0


def test_smallest_group_limits(group: Path) -> None:
    machine = main_memory.available_bytes()
    assert machine > 100 * MIB
    limited(group, "max", 1, 0)
    assert main_memory.available_bytes() > 100 * MIB
    limited(group, str(64 * MIB), 10 * MIB, MIB)
    assert main_memory.available_bytes() == 55 * MIB  # files that were read once can be dropped
    limited(group.parent, str(40 * MIB), 10 * MIB, 0)
    assert main_memory.available_bytes() == 30 * MIB
    limited(group.parent, str(40 * MIB), 41 * MIB, 0)
    assert main_memory.available_bytes() == 0


def test_first_version_of_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_memory, "own_group", lambda: (tmp_path, 1))
    (tmp_path / "memory.limit_in_bytes").write_text(f"{64 * MIB}\n")
    (tmp_path / "memory.usage_in_bytes").write_text(f"{10 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"inactive_file 5\ntotal_inactive_file {MIB}\n")
    assert main_memory.available_bytes() == 55 * MIB


def test_machine_without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> tuple[Path, int]:
        raise FileNotFoundError("no control groups are mounted")

    monkeypatch.setattr(main_memory, "own_group", none)
    assert main_memory.available_bytes() > 0
