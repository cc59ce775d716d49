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
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.hostile.case import Verdict, Wrong
from vramcast.cli.main import main, parser
from vramcast.learner import artifact, cards, drift, judging, stacks, training  # noqa: F401 (so that no child imports them)
from vramcast.learner.evaluation import metrics, report  # noqa: F401
from vramcast.views import draw_text, save  # noqa: F401

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
                atexit._clear()  # what this process would clean up is not the child's
                os.setsid()  # who is left behind is in this group
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                os.environ.update(environment or {})
                code = _run(arguments)
                atexit._run_exitfuncs()
            finally:
                os._exit(code)
        found = _waited(pid)
        if found is None:
            return Verdict(Wrong.HANG, f"did not end within {LIMIT_S:.0f} s")
        with suppress(ProcessLookupError):
            os.killpg(pid, 0)
            os.killpg(pid, signal.SIGKILL)
            return Verdict(Wrong.ORPHAN, "a process of it still runs")
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


def _children() -> set[int]:
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return "vramcast"  # it ended meanwhile


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))
