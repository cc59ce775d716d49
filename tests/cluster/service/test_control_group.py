"""Control groups, on a folder that simulates the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vramcast.cluster.service.control_group import ControlGroup, control_groups

MIB = 1 << 20


@pytest.fixture
def lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a group in which new folders have the kernel's files, of both versions."""
    make = Path.mkdir

    def made(folder: Path, *arguments: object, **options: object) -> None:
        make(folder, *arguments, **options)  # type: ignore[arg-type]
        for name, text in (
            *(("memory.max", "max"), ("memory.swap.max", "max"), ("memory.oom.group", "0"), ("cgroup.procs", "")),
            *(("memory.events", "low 0\noom 2\noom_kill 0\n"), ("memory.limit_in_bytes", "-1")),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"),
        ):
            (folder / name).write_text(text)

    monkeypatch.setattr(Path, "mkdir", made)
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("")
    return tmp_path


def test_limits_version_2_group_without_swap(lent: Path) -> None:
    (lent / "cgroup.procs").write_text(f"{os.getpid()}\n")
    groups = control_groups(2, 5 * MIB, (lent, 2))
    assert [group.folder.name for group in groups] == [f"vramcast-{os.getpid()}-{number}" for number in (0, 1)]
    said = {name: (groups[1].folder / name).read_text() for name in ("memory.max", "memory.swap.max", "memory.oom.group")}
    assert said == {"memory.max": str(5 * MIB), "memory.swap.max": "0", "memory.oom.group": "1"}
    assert (lent / "vramcast-service" / "cgroup.procs").read_text() == str(os.getpid())  # its processes were moved
    assert (lent / "cgroup.subtree_control").read_text() == "+memory"
    (groups[0].folder / "memory.events").write_text("oom_group_kill 9\noom_kill 3\n")
    assert [group.kills() for group in groups] == [3, 0]


def test_limits_version_1_group(lent: Path) -> None:
    (group,) = control_groups(1, 5 * MIB, (lent, 1))
    assert (group.folder / "memory.limit_in_bytes").read_text() == str(5 * MIB)
    group.entrance.write_text("1\n22\n")
    assert (group.processes(), group.kills()) == ([1, 22], 0)


def test_does_not_move_other_processes(lent: Path) -> None:
    (lent / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n")
    with pytest.raises(OSError, match="1 other processes"):
        control_groups(1, MIB, (lent, 2))


def test_rejects_group_without_memory_limit(lent: Path) -> None:
    (lent / "cgroup.controllers").write_text("cpu pids")
    with pytest.raises(OSError, match="does not delegate memory"):
        control_groups(1, MIB, (lent, 2))


def test_leaves_nothing_without_kernel_files(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="memory"):
        control_groups(2, MIB, (tmp_path, 1))


def test_removes_only_groups_of_killed_services(lent: Path, tmp_path: Path) -> None:
    left, lives = lent / "vramcast-999999999-0", lent / f"vramcast-{os.getppid()}-0"
    for folder in (left, lives):
        os.mkdir(folder)
    control_groups(1, MIB, (lent, 1))
    assert (left.exists(), lives.exists()) == (False, True)


def test_removed_group_has_no_processes() -> None:
    group = ControlGroup(Path("/no/such/group"), 2)
    group.remove()
    assert group.processes() == []
