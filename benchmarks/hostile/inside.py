"""The command line without a new interpreter for each command: thousands of them in minutes.

`forked` runs a command in a child of this process, which has all imports behind it. `here` runs it in this process, whose
worker is warm: for commands which trace a job. Both hand exit code, stdout and stderr to a judge.
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

GRACE_S = 2.0  # arbitrary: what a caller of ours may still find running when we have ended
parser()  # imports the verbs
LIMIT_S = 60.0  # arbitrary: far above what a command without a job needs on a busy machine

Judge = Callable[[int, str, str], Verdict]


def forked(arguments: Sequence[str], verdict: Judge, environment: Mapping[str, str] | None = None) -> Verdict:
    """Run a command in a child process and judge it; processes which it leaves behind are ended, and wrong."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            code = 70  # spec: EX_SOFTWARE of sysexits.h; never one of ours
            try:
                weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # our temporary folders are not the child's
                os.setsid()  # who is left behind is in this group
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
    """Run a command in this process and judge it."""
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
        left = [pid for pid in _children() - before if "vramcast" not in _command(pid)]  # its warm workers stay, as they should
        if left:
            return Verdict(Wrong.ORPHAN, f"{len(left)} processes of it still run")
        return verdict(code, _text(out), _text(err))


def _run(arguments: Sequence[str]) -> int:
    """Return the exit code as the console script would end with it: 1 for what escapes."""
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
    """Return the exit code of a child, negative for a signal; None: it took too long."""
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
    """Return the commands of a process group's members, if any still run after a while; helpers of Python's own end by then."""
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
            if its_group == str(group) and state != "Z":  # the dead stay where nobody asks after them
                found.append(_command(int(place.name)).replace("\0", " ")[:150])
    return found


def _children() -> set[int]:
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return "vramcast"  # it ended meanwhile


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))
