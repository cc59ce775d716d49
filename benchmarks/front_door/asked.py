"""One question on the command line: its answer, its time, and its main memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Final

ROOT: Final = Path(__file__).parents[2]
COLUMNS: Final = 100  # spec: a terminal on which the answer has at most seven lines
LINES: Final = 7  # spec
ANSWERED: Final = frozenset({0, 1, 4})  # spec: exit codes with an estimate
_TIMEOUT_S: Final = 300.0  # arbitrary: far above the time of a first answer that anybody waits for


@dataclass(frozen=True, slots=True)
class Asked:
    """The output of a command, its time, and its main memory.

    Attributes:
        code: Exit code; negative: the signal that ended it.
        out: Standard output.
        err: Standard error.
        seconds: Wall time.
        resident_bytes: Main memory of its largest process.
    """

    code: int
    out: str
    err: str
    seconds: float
    resident_bytes: int

    @property
    def is_answer(self) -> bool:
        """True if there is an estimate."""
        return self.code in ANSWERED and bool(self.out)

    @property
    def fault(self) -> str:
        """Why the answer is too long to read out; "" if it is not."""
        lines = self.out.splitlines()
        if len(lines) > LINES:
            return f"{len(lines)} lines"
        widest = max(map(len, lines), default=0)
        return f"{widest} columns" if widest > COLUMNS else ""

    @property
    def reason(self) -> str:
        """The last line of the error."""
        lines = self.err.strip().splitlines() or ["no message"]
        return "no answer in time" if self.code == -signal.SIGKILL else lines[-1]


def ask(words: Sequence[str], *, timeout_s: float = _TIMEOUT_S) -> Asked:
    """Run `vramcast` with these words, without the network."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(COLUMNS), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "vramcast", *words],
            env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip
        timer = Timer(timeout_s, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
        return Asked(process.returncode, *texts, time.monotonic() - begin, usage.ru_maxrss * 1024)
