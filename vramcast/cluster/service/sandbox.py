"""Sandbox for untrusted code: bubblewrap, no network, an unprivileged user; of this machine only Python and its packages.

The sandbox sees /usr, this Python, vramcast and a prepared cache, read-only; its own folders are in memory and end with it.
It sees no home folder, no data of the service, no token and no other process. If the service is root, each sandbox has a
user of its own, because the kernel counts processes by user. The pool (`workers.py`) or a control group limits time and
memory; this file limits processor time, processes, open files, and sizes of files. `system_calls.py` lists the forbidden
system calls.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vramcast.cluster.service import system_calls
from vramcast.cluster.service.control_group import ControlGroup, control_groups
from vramcast.cluster.service.workers import WorkerSlot
from vramcast.core.cache import VARIABLE
from vramcast.core.errors import UsageError
from vramcast.core.location import FOLDER
from vramcast.core.units import gib

_NEEDED: Final = {"bwrap": "bubblewrap", "setpriv": "util-linux", "prlimit": "util-linux"}  # program -> Debian package
_FIRST_USER, _MOST_USERS = 65000, 500  # spec: Debian policy 9.2.2: 65000 to 65533 are unassigned
_SCRATCH_BYTES: Final = 1 << 30  # arbitrary: for each folder in memory; a checkpoint written by a job has no data
_PROCESSES: Final = 512  # arbitrary: for one sandbox; torch starts a thread per core, Inductor a few more
_OPEN_FILES: Final = 4096  # arbitrary: memory of a pipe or a socket is in no process's resident memory
_CPU_S: Final = 600  # arbitrary: the pool's time limit is shorter on most machines
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")  # spec: Debian's programs
JOB: Final = "/job"
_CACHE: Final = "/cache"
FOLDERS_IN_MEMORY: Final = ("/tmp", JOB, "/dev/shm")
_FILTER: Final = "system-calls.bpf"
# Each start reads the filter from a descriptor of its own, and enters its control group before anything counts.
_ENTER: Final = 'if [ -n "$1" ]; then echo $$ > "$1" || exit 1; fi; filter=$0; shift; exec "$@" 9< "$filter"'


def missing() -> str:
    """Return the first program that a sandbox lacks here; "": none."""
    programs = [f"{name} (Debian package {package})" for name, package in _NEEDED.items() if shutil.which(name) is None]
    return ", ".join([*programs, *filter(None, [system_calls.missing()])])


def places(program: Sequence[str], cache: Path, count: int, memory_bytes: int) -> tuple[list[WorkerSlot], str]:
    """Return places where a Python program runs in a sandbox, and a description of their memory limit.

    Args:
        program: Arguments of `python`.
        cache: A prepared cache folder, which the sandbox may read.
        count: Number of places; each has a user of its own if this process is root.
        memory_bytes: Memory limit of each.
    Raises:
        UsageError: A required program is not installed, or there are more sandboxes than users.
    """
    if count > _MOST_USERS:
        raise UsageError(f"--workers {count} is too many: at most {_MOST_USERS} sandboxes can have a user of their own.")
    groups: Sequence[ControlGroup | None]
    try:
        groups, held = control_groups(count, memory_bytes), f"a control group limits each job to {gib(memory_bytes)}"
    except OSError as error:
        groups = [None] * count
        held = (
            f"no control group limits the memory of jobs ({error}): it is checked four times a second instead, without the "
            "kernel's memory for pipes and sockets. Give the service a group of its own (systemd: Delegate=yes)"
        )
    return [
        WorkerSlot(sandboxed(program, cache, number, group), group, () if group else FOLDERS_IN_MEMORY)
        for number, group in enumerate(groups)
    ], held


def sandboxed(program: Sequence[str], cache: Path, number: int = 0, group: ControlGroup | None = None) -> list[str]:
    """Return the command that runs a Python program in a sandbox.

    Args:
        program: Arguments of `python`.
        cache: A prepared cache folder, which the sandbox may read; the filter of system calls is written to it.
        number: Number of the sandbox; those that run at the same time have different ones.
        group: Control group to enter.
    Raises:
        UsageError: A required program is not installed.
    """
    if lacking := missing():
        raise UsageError(
            f"Code cannot be run safely here, because {lacking} is missing: install it, or serve without --allow-code."
        )
    own = [sys.base_prefix, sys.prefix, str(FOLDER.resolve().parent)]
    above = {str(parent): None for path in own for parent in reversed(Path(path).parents[:-1])}
    # only root can enter those that bubblewrap makes
    folders = [word for path in above for word in ("--perms", "0755", "--dir", path)]
    shown = [word for path in (*_SYSTEM, *dict.fromkeys(own)) for word in ("--ro-bind-try", path, path)]
    size = ["--perms", "1777", "--size", str(_SCRATCH_BYTES)]
    scratch = [word for path in FOLDERS_IN_MEMORY for word in (*size, "--tmpfs", path)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": JOB, VARIABLE: _CACHE, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    alone = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent"]
    user = _FIRST_USER + number
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"] if os.geteuid() == 0 else []
    setting = [word for name, value in environment.items() for word in ("--setenv", name, value)]
    limits = [f"--nproc={_PROCESSES}", f"--nofile={_OPEN_FILES}", f"--cpu={_CPU_S}", f"--fsize={_SCRATCH_BYTES}", "--core=0"]
    (cache / _FILTER).write_bytes(system_calls.refusing())
    # A mapping of /dev/zero would be uncounted memory; in a user namespace its owner could write to / and /dev.
    return [
        *("sh", "-c", _ENTER, str(cache / _FILTER), str(group.entrance) if group else ""),
        *("bwrap", *alone, "--new-session", "--seccomp", "9", "--clearenv", *setting, "--dev", "/dev"),
        *("--ro-bind", "/dev/null", "/dev/zero", *scratch, *folders, *shown),
        *("--perms", "0755", "--dir", _CACHE, "--ro-bind", str(cache), _CACHE),
        *("--proc", "/proc", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", JOB, "--"),
        *(*become, "prlimit", *limits, sys.executable, "-P", *program),
    ]
