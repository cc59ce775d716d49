"""The command line without a new interpreter per command: runs thousands of commands in minutes.

`forked` runs a command in a child of this process, which has already imported everything. `here` runs it in this process, whose
worker is warm: for commands that trace a job. Both pass exit code, stdout, and stderr to a judge.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.hostile.case import Verdict, Wrong
from vramcast.cli.main import main, parser
from vramcast.learner import artifact, cross_validation, drift, model_cards, stacks, training  # noqa: F401 (so that no child imports them)
from vramcast.learner.evaluation import metrics, report  # noqa: F401
from vramcast.views import save, text, timeline  # noqa: F401

GRACE_S = 2.0  # arbitrary: time for which processes may outlive the command
parser()  # imports the verbs
LIMIT_S = 60.0  # arbitrary: far above the time of a command without a job on a busy machine

Judge = Callable[[int, str, str], Verdict]


def forked(arguments: Sequence[str], verdict: Judge, environment: Mapping[str, str] | None = None) -> Verdict:
    """Run a command in a child process and return the verdict; processes left behind are ended and count as a fault."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            code = 70  # spec: EX_SOFTWARE of sysexits.h; not one of our exit codes
            try:
                weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # our temporary folders are not the child's
                os.setsid()  # processes left behind are in this group
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                os.environ.update(environment or {})
                code = _run(arguments)
                threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does at its end
                atexit._run_exitfuncs()
            finally:
                os._exit(code)
        found = _waited(pid)
        if found is None:
            return Verdict(Wrong.HANG, f"did not end within {LIMIT_S:.0f} s")
        if left := _left(pid):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            return Verdict(Wrong.ORPHAN, f"still runs after {GRACE_S:g} s: {left[0]}")
        return verdict(found, _text(out), _text(err))


def here(arguments: Sequence[str], verdict: Judge) -> Verdict:
    """Run a command in this process and return the verdict."""
    before = _children()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        kept = os.dup(1), os.dup(2)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            code = _run(arguments)
        finally:
            for fd, number in zip(kept, (1, 2), strict=True):
                os.dup2(fd, number)
                os.close(fd)
        left = [pid for pid in _children() - before if "vramcast" not in _command(pid)]  # warm workers may stay
        if left:
            return Verdict(Wrong.ORPHAN, f"{len(left)} processes of it still run")
        return verdict(code, _text(out), _text(err))


def _run(arguments: Sequence[str]) -> int:
    """Return the exit code of the console script: 1 for an escaped exception."""
    try:
        code = main(arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _waited(pid: int) -> int | None:
    """Return the exit code of a child, negative for a signal; None after a timeout."""
    deadline = time.monotonic() + LIMIT_S
    pause_s = 1e-3
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _left(group: int) -> list[str]:
    """Return the commands of a process group's members that run after a grace period; Python's own helpers end within it."""
    deadline = time.monotonic() + GRACE_S
    while (found := _members(group)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _members(group: int) -> list[str]:
    found = []
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, its_group = (place / "stat").read_text().rpartition(")")[2].split()[:3]
            if its_group == str(group) and state != "Z":  # zombies stay until they are reaped
                found.append(_command(int(place.name)).replace("\0", " ")[:150])
    return found


def _children() -> set[int]:
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return "vramcast"  # it has ended


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))
