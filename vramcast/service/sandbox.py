"""Where untrusted code runs: bubblewrap, no network, an unprivileged user, of this machine only Python and its packages.

The sandbox sees /usr, this Python, vramcast and a prepared cache, read-only; its own folders are in memory and end with it. It
sees no home, no data of the service, no token, no other process, and each has a user of its own where the service is root: the
kernel counts processes by user. Limits of time and memory are the pool's (`workers.py`) or a control group's; here are those of
processor time, processes, open files, and sizes of files. What is refused of the kernel says `system_calls.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vramcast.core.cache import VARIABLE
from vramcast.core.errors import UsageError
from vramcast.core.location import FOLDER
from vramcast.core.units import gib
from vramcast.service import system_calls
from vramcast.service.control_group import ControlGroup, control_groups
from vramcast.service.workers import Place

_NEEDED: Final = {"bwrap": "bubblewrap", "setpriv": "util-linux", "prlimit": "util-linux"}  # program -> Debian package
_FIRST_USER, _MOST_USERS = 65000, 500  # spec: Debian policy 9.2.2: 65000 to 65533 are nobody's
_SCRATCH_BYTES: Final = 1 << 30  # arbitrary: of each folder in memory; a checkpoint which a job writes has no bytes
_PROCESSES: Final = 512  # arbitrary: of one sandbox; torch starts a thread a core, Inductor some more
_OPEN_FILES: Final = 4096  # arbitrary: what a pipe or a socket holds is in nobody's resident memory
_CPU_S: Final = 600  # arbitrary: the pool's limit of time is shorter on most machines
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")  # spec: Debian's programs
JOB: Final = "/job"
_CACHE: Final = "/cache"
FOLDERS_IN_MEMORY: Final = ("/tmp", JOB, "/dev/shm")
_FILTER: Final = "system-calls.bpf"
# Each start reads the filter from a descriptor of its own, and enters its control group before anything counts.
_ENTER: Final = 'if [ -n "$1" ]; then echo $$ > "$1" || exit 1; fi; filter=$0; shift; exec "$@" 9< "$filter"'


def missing() -> str:
    """Return what a sandbox lacks here; "" where it can be had."""
    programs = [f"{name} (Debian package {package})" for name, package in _NEEDED.items() if shutil.which(name) is None]
    return ", ".join([*programs, *filter(None, [system_calls.missing()])])


def places(program: Sequence[str], cache: Path, count: int, memory_bytes: int) -> tuple[list[Place], str]:
    """Return places where a program of this Python's runs in a sandbox, and in words what limits their memory.

    Args:
        program: What stands behind `python`.
        cache: A prepared cache folder, which the sandbox may read.
        count: How many; each has a user of its own where this process is root.
        memory_bytes: Of each.
    Raises:
        UsageError: a program which this takes is not installed, or there are more than users.
    """
    if count > _MOST_USERS:
        raise UsageError(f"--workers {count}: at most {_MOST_USERS} sandboxes have a user of their own.")
    groups: Sequence[ControlGroup | None]
    try:
        groups, held = control_groups(count, memory_bytes), f"a control group holds each job to {gib(memory_bytes)}"
    except OSError as error:
        groups = [None] * count
        held = (
            f"no control group limits the memory of jobs ({error}): it is looked at four times a second, and what the kernel "
            "holds for pipes and sockets is not seen. Give the service a group of its own (systemd: Delegate=yes)"
        )
    return [
        Place(sandboxed(program, cache, number, group), group, () if group else FOLDERS_IN_MEMORY)
        for number, group in enumerate(groups)
    ], held


def sandboxed(program: Sequence[str], cache: Path, number: int = 0, group: ControlGroup | None = None) -> list[str]:
    """Return the command which runs a program of this Python's in a sandbox.

    Args:
        program: What stands behind `python`.
        cache: A prepared cache folder, which the sandbox may read, and in which its list of system calls is written.
        number: Of the sandbox: those which run at the same time have different ones.
        group: Which it enters.
    Raises:
        UsageError: a program which this takes is not installed.
    """
    if lacking := missing():
        raise UsageError(f"Code cannot be run safely here: {lacking} is not there.")
    own = [sys.base_prefix, sys.prefix, str(FOLDER.resolve().parent)]
    above = {str(parent): None for path in own for parent in reversed(Path(path).parents[:-1])}
    folders = [word for path in above for word in ("--perms", "0755", "--dir", path)]  # bubblewrap's own are for root alone
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
    # /dev/zero, mapped, would be memory of nobody; in a name space of users its owner could write to / and /dev.
    return [
        *("sh", "-c", _ENTER, str(cache / _FILTER), str(group.entrance) if group else ""),
        *("bwrap", *alone, "--new-session", "--seccomp", "9", "--clearenv", *setting, "--dev", "/dev"),
        *("--ro-bind", "/dev/null", "/dev/zero", *scratch, *folders, *shown),
        *("--perms", "0755", "--dir", _CACHE, "--ro-bind", str(cache), _CACHE),
        *("--proc", "/proc", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", JOB, "--"),
        *(*become, "prlimit", *limits, sys.executable, "-P", *program),
    ]
