"""Where untrusted code runs: bubblewrap, no network, an unprivileged user, of this machine only Python and its packages.

The sandbox sees /usr, this Python, vramcast and a prepared cache, read-only; its own folders are in memory and end with it. It
sees no home, no data of the service, no token, no other process. Limits of time and resident memory are the pool's
(`workers.py`); here are those of processor time, processes, and sizes of files.
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

_NEEDED: Final = {"bwrap": "bubblewrap", "setpriv": "util-linux", "prlimit": "util-linux"}  # program -> Debian package
_NOBODY: Final = 65534  # spec: Linux, the overflow user, who owns nothing
_SCRATCH_BYTES: Final = 1 << 30  # arbitrary: of each folder in memory; a checkpoint which a job writes has no bytes
_PROCESSES: Final = 512  # arbitrary: of the user in all sandboxes; torch starts a thread a core, Inductor some more
_CPU_S: Final = 600  # arbitrary: the pool's limit of time is shorter on most machines
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")  # spec: Debian's programs
JOB: Final = "/job"
_CACHE: Final = "/cache"


def missing() -> str:
    """Return what a sandbox lacks here; "" where it can be had."""
    return ", ".join(f"{name} (Debian package {package})" for name, package in _NEEDED.items() if shutil.which(name) is None)


def sandboxed(program: Sequence[str], cache: Path) -> list[str]:
    """Return the command which runs a program of this Python's in a sandbox.

    Args:
        program: What stands behind `python`.
        cache: A prepared cache folder, which the sandbox may read.
    Raises:
        UsageError: a program which this takes is not installed.
    """
    if lacking := missing():
        raise UsageError(f"Code cannot be run safely here: {lacking} is not installed.")
    own = [sys.base_prefix, sys.prefix, str(FOLDER.resolve().parent)]
    above = {str(parent): None for path in own for parent in reversed(Path(path).parents[:-1])}
    folders = [word for path in above for word in ("--perms", "0755", "--dir", path)]  # bubblewrap's own are for root alone
    shown = [word for path in (*_SYSTEM, *dict.fromkeys(own)) for word in ("--ro-bind-try", path, path)]
    scratch = [word for path in ("/tmp", JOB) for word in ("--perms", "1777", "--size", str(_SCRATCH_BYTES), "--tmpfs", path)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": JOB, VARIABLE: _CACHE, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    alone = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent"]
    user = (
        ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--no-new-privs"] if os.geteuid() == 0 else []
    )
    setting = [word for name, value in environment.items() for word in ("--setenv", name, value)]
    limits = [f"--nproc={_PROCESSES}", f"--cpu={_CPU_S}", f"--fsize={_SCRATCH_BYTES}", "--core=0"]
    return [
        *("bwrap", *alone, "--new-session", "--clearenv", *setting, *scratch, *folders, *shown),
        *("--perms", "0755", "--dir", _CACHE, "--ro-bind", str(cache), _CACHE),
        *("--proc", "/proc", "--dev", "/dev", "--chdir", JOB, "--"),
        *(*user, "prlimit", *limits, sys.executable, *program),
    ]
