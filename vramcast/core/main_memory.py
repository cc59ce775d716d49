"""The main memory of this machine that processes hold, and that they may still take. Linux only."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

# spec: proc(5); pages that the kernel cannot drop and read again. In a rollup, each of those who share a page has a part of it.
_KEPT: Final = re.compile(r"^(?:RssAnon|RssShmem|VmSwap|Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+) kB$", re.MULTILINE)
# spec: Linux, Documentation/admin-guide: the limit of a control group, what it uses, and files of it that can be dropped
_FILES: Final = {
    2: ("memory.max", "memory.current", re.compile(r"^inactive_file (\d+)$", re.MULTILINE)),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", re.compile(r"^total_inactive_file (\d+)$", re.MULTILINE)),
}


def kept_bytes(pid: int, *, is_exact: bool = False) -> int:
    """Return the main memory that a process holds; 0 if it has ended. `is_exact`: a page that others share counts in parts."""
    for file in ("smaps_rollup", "status") if is_exact else ("status",):  # the first may be forbidden
        with contextlib.suppress(OSError):
            return sum(int(kib) << 10 for kib in _KEPT.findall(Path(f"/proc/{pid}/{file}").read_text(errors="replace")))
    return 0


def available_bytes() -> int:
    """Return the main memory that this process may still take, of the machine and within its control groups."""
    left = [int(re.findall(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[0]) << 10]
    with contextlib.suppress(OSError):  # this group is not shown here, or none is above the last one
        folder, version = own_group()
        most, now, files = _FILES[version]
        while True:
            if (limit := (folder / most).read_text().strip()) != "max":
                dropped = sum(map(int, files.findall((folder / "memory.stat").read_text())))
                left.append(int(limit) - int((folder / now).read_text()) + dropped)
            folder = folder.parent
    return max(min(left), 0)


def own_group() -> tuple[Path, int]:
    """Return the folder of this process's group that counts memory, and the version.

    Raises:
        OSError: There is none.
    """
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    paths = {name: path for _, controllers, path in lines for name in controllers.split(",")}  # version 2 has no name
    for name, kind, version in (("memory", "cgroup", 1), ("", "cgroup2", 2)):
        for _, place, mounted, options, *_ in mounts:
            if name in paths and mounted == kind and (not name or name in options.split(",")):
                return _below(Path(place), paths[name]), version
    raise FileNotFoundError("no control groups are mounted")


def _below(place: Path, path: str) -> Path:
    whole = place / path.lstrip("/")
    return whole if whole.exists() else place  # a container may see its own group as the root
