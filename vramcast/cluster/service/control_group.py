"""Memory limits of a sandbox, enforced by the kernel: a control group of its own, if this machine permits one.

All memory of the group counts: that of processes, of files in memory, and of the kernel on their behalf. A service can
create groups below its own if it may write there: as root on a machine of its own, or as a unit with `Delegate=yes`.
Versions 1 and 2 of control groups are supported.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vramcast.core.main_memory import own_group
from vramcast.core.process_tree import descendants

_NAME: Final = "vramcast-{pid}-{number}"
_OURS: Final = re.compile(r"vramcast-(\d+)-(\d+)")
_PROCESSES: Final = "cgroup.procs"
# spec: Linux, Documentation/admin-guide: the limit, the swap limit (absent without swap), and the kernel's kills
_FILES: Final = {
    2: ("memory.max", "memory.swap.max", "memory.events"),
    1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"),
}
_KILLS: Final = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One control group, used by one job after another.

    Attributes:
        folder: Folder of the group in the kernel's file system.
        version: Version of control groups.
    """

    folder: Path
    version: int

    @property
    def entrance(self) -> Path:
        """The file to which a process writes its id to join the group."""
        return self.folder / _PROCESSES

    def limit(self, size_bytes: int) -> None:
        """Limit the memory of the group; raise OSError if that is impossible."""
        most, swap, _ = _FILES[self.version]
        (self.folder / most).write_text(str(size_bytes))
        for name, value in ((swap, size_bytes if self.version == 1 else 0), ("memory.oom.group", 1)):
            if (file := self.folder / name).exists():
                file.write_text(str(value))

    def kills(self) -> int:
        """Return the number of its processes that the kernel has killed because the group was full."""
        found = _KILLS.search((self.folder / _FILES[self.version][2]).read_text())
        return int(found[1]) if found else 0

    def processes(self) -> list[int]:
        """Return the ids of its processes."""
        with contextlib.suppress(OSError):
            return [int(line) for line in self.entrance.read_text().split()]
        return []

    def remove(self) -> None:
        """Remove the group once it is empty."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def control_groups(count: int, size_bytes: int, own: tuple[Path, int] | None = None) -> list[ControlGroup]:
    """Return groups below this process's own, each limited to a size.

    Args:
        count: Number of groups.
        size_bytes: Memory limit of each.
        own: Folder of this process's group, and the version; default: as the kernel reports.
    Raises:
        OSError: This machine permits no groups; the message gives the reason.
    """
    folder, version = own or own_group()
    _remove_left(folder)
    if version == 2:
        _hand_down(folder)
    groups = [ControlGroup(folder / _NAME.format(pid=os.getpid(), number=number), version) for number in range(count)]
    try:
        for group in groups:
            group.folder.mkdir()
            group.limit(size_bytes)
            group.kills()
    except OSError:
        for group in groups:
            group.remove()
        raise
    return groups


def refusal() -> str:
    """Return the reason why this machine permits no groups, without trying to make one; "": it may permit them."""
    try:
        folder, version = own_group()
        if version == 2 and "memory" not in (folder / "cgroup.controllers").read_text().split():
            return f"{folder} does not delegate memory limits"
        return "" if os.access(folder, os.W_OK) else f"{folder} is not writable"
    except OSError as error:
        return str(error)


def _hand_down(folder: Path) -> None:
    """Let groups below this one limit memory; move its processes into one of them, as version 2 requires.

    Raises:
        OSError: This is not permitted.
    """
    if "memory" not in (folder / "cgroup.controllers").read_text().split():
        raise PermissionError(f"{folder} does not delegate memory limits")
    if "memory" in (folder / "cgroup.subtree_control").read_text().split():
        return
    inside = {int(line) for line in (folder / _PROCESSES).read_text().split()}
    if others := inside - {os.getpid(), *descendants(os.getpid())}:
        raise PermissionError(f"{folder} has {len(others)} other processes, which this service must not move")
    inner = folder / "vramcast-service"
    inner.mkdir(exist_ok=True)
    for pid in inside:
        with contextlib.suppress(ProcessLookupError):
            (inner / _PROCESSES).write_text(str(pid))
    (folder / "cgroup.subtree_control").write_text("+memory")


def _remove_left(folder: Path) -> None:
    """Remove groups left by services that were killed."""
    for one in folder.glob("vramcast-*-*"):
        if (named := _OURS.fullmatch(one.name)) and not Path(f"/proc/{named[1]}").exists():
            with contextlib.suppress(OSError):
                one.rmdir()
