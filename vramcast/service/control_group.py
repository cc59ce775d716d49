"""The memory of a sandbox, limited by the kernel: a control group of its own, where this machine lends us one.

What a group holds is all that counts as its memory: of processes, of files in memory, of the kernel for them. A service has
groups below its own where it may write there: as root on a machine of its own, or as a unit with `Delegate=yes`. Version 2 and
version 1 of control groups are known.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vramcast.core.process_tree import descendants

_NAME: Final = "vramcast-{pid}-{number}"
_OURS: Final = re.compile(r"vramcast-(\d+)-(\d+)")
_PROCESSES: Final = "cgroup.procs"
# spec: Linux, Documentation/admin-guide: the limit, one of swap which is absent where there is none, and the kernel's kills
_FILES: Final = {
    2: ("memory.max", "memory.swap.max", "memory.events"),
    1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"),
}
_KILLS: Final = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One group, for one job after the other.

    Attributes:
        folder: Of the kernel's.
        version: Of control groups.
    """

    folder: Path
    version: int

    @property
    def entrance(self) -> Path:
        """The file into which a process writes its number to enter."""
        return self.folder / _PROCESSES

    def limit(self, size_bytes: int) -> None:
        """Let it hold so much and no more; raise OSError where it cannot be limited."""
        most, swap, _ = _FILES[self.version]
        (self.folder / most).write_text(str(size_bytes))
        for name, value in ((swap, size_bytes if self.version == 1 else 0), ("memory.oom.group", 1)):
            if (file := self.folder / name).exists():
                file.write_text(str(value))

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed because it was full."""
        found = _KILLS.search((self.folder / _FILES[self.version][2]).read_text())
        return int(found[1]) if found else 0

    def processes(self) -> list[int]:
        """Return who is in it."""
        with contextlib.suppress(OSError):
            return [int(line) for line in self.entrance.read_text().split()]
        return []

    def remove(self) -> None:
        """Remove it, once it is empty."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def control_groups(count: int, size_bytes: int, own: tuple[Path, int] | None = None) -> list[ControlGroup]:
    """Return groups of this process's, each limited to a size.

    Args:
        count: How many.
        size_bytes: Of each.
        own: The folder of this process's group, and the version; default: as the kernel says.
    Raises:
        OSError: this machine lends none; the message says why.
    """
    folder, version = own or _own()
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
    """Return why this machine lends no groups, as far as one sees without making one; "": it does."""
    try:
        folder, version = _own()
        if version == 2 and "memory" not in (folder / "cgroup.controllers").read_text().split():
            return f"{folder} lends no memory"
        return "" if os.access(folder, os.W_OK) else f"{folder} cannot be written"
    except OSError as error:
        return str(error)


def _own() -> tuple[Path, int]:
    """Return the folder of this process's group that counts memory, and the version.

    Raises:
        OSError: there is none.
    """
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for _, controllers, path in lines:
        for _, place, kind, options, *_ in mounts:
            if "memory" in controllers.split(",") and kind == "cgroup" and "memory" in options.split(","):
                return _below(Path(place), path), 1
    for _, controllers, path in lines:
        for _, place, kind, *_ in mounts:
            if not controllers and kind == "cgroup2":
                return _below(Path(place), path), 2
    raise FileNotFoundError("no control groups are mounted")


def _below(place: Path, path: str) -> Path:
    whole = place / path.lstrip("/")
    return whole if whole.exists() else place  # a container may see its own group as the first one


def _hand_down(folder: Path) -> None:
    """Let groups below this one limit memory: who is in it goes into one below, as version 2 wants it.

    Raises:
        OSError: it may not.
    """
    if "memory" not in (folder / "cgroup.controllers").read_text().split():
        raise PermissionError(f"{folder} lends no memory")
    if "memory" in (folder / "cgroup.subtree_control").read_text().split():
        return
    inside = {int(line) for line in (folder / _PROCESSES).read_text().split()}
    if others := inside - {os.getpid(), *descendants(os.getpid())}:
        raise PermissionError(f"{folder} has {len(others)} other processes, which are not this service's to move")
    inner = folder / "vramcast-service"
    inner.mkdir(exist_ok=True)
    for pid in inside:
        with contextlib.suppress(ProcessLookupError):
            (inner / _PROCESSES).write_text(str(pid))
    (folder / "cgroup.subtree_control").write_text("+memory")


def _remove_left(folder: Path) -> None:
    """Remove what services left which were killed."""
    for one in folder.glob("vramcast-*-*"):
        if (named := _OURS.fullmatch(one.name)) and not Path(f"/proc/{named[1]}").exists():
            with contextlib.suppress(OSError):
                one.rmdir()
