"""The command line as a hostile caller starts it, and the verdict on its result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hostile.case import HANDLED, Verdict, Wrong

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0  # arbitrary: far above the time of any of these cases on a busy machine
_SHOWN = 200  # arbitrary: characters of a message in the table


def vramcast(
    arguments: Sequence[str],
    *,
    codes: Collection[int],
    environment: Mapping[str, str | None] | None = None,
    says: str = "",
    check: Callable[[dict[str, Any]], str] | None = None,
    limit_s: float = LIMIT_S,
    **popen: Any,
) -> Verdict:
    """Run one command in a process of its own and return the verdict on it.

    Args:
        arguments: Words after `vramcast`.
        codes: The right exit codes.
        environment: Changes to the environment; None removes a variable.
        says: Required part of stderr.
        check: Check of the JSON object of an answer (exit 0, 1 or 4 with --json); it returns the fault, or "".
        limit_s: Time after which the command counts as hanging.
        popen: Further arguments of subprocess.run.
    """
    full = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vramcast", *arguments],
            env={name: value for name, value in full.items() if value is not None},
            stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, **popen,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Verdict(Wrong.HANG, f"did not end within {limit_s:.0f} s")
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    return judge(done.returncode, out, err, codes=codes, says=says, check=check, is_json="--json" in arguments)


def judge(
    code: int,
    out: str,
    err: str,
    *,
    codes: Collection[int],
    is_json: bool,
    says: str = "",
    check: Callable[[dict[str, Any]], str] | None = None,
) -> Verdict:
    """Return the verdict on a finished command: exit code, no traceback, a message, one JSON object where expected."""
    last = err.strip().splitlines()[-1][:_SHOWN] if err.strip() else ""
    if "Traceback (most recent call last)" in err:
        return Verdict(Wrong.TRACEBACK, last)
    if code not in codes:
        return Verdict(Wrong.EXIT_CODE, f"exit {code}, not {' or '.join(map(str, sorted(codes)))}: {last}")
    if says not in err:
        return Verdict(Wrong.UNCLEAR, f"'{says}' is not in: {last}")
    if code and code not in (1, 4) and not last:
        return Verdict(Wrong.UNCLEAR, f"exit {code} without a word")
    if not is_json or code == 2:  # wrong usage is reported only on stderr
        return HANDLED
    try:
        found = json.loads(out)
    except ValueError:
        return Verdict(Wrong.UNCLEAR, f"stdout is not one JSON object: {out[:_SHOWN]!r}")
    if code == 3:
        return HANDLED if "error" in found else Verdict(Wrong.UNCLEAR, "the JSON object of exit 3 has no 'error'")
    problem = check(found) if check is not None else ""
    return Verdict(Wrong.NUMBER, problem) if problem else HANDLED
