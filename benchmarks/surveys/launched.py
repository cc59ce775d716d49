"""Answers of `vramcast run` for a script of several ranks, for all benchmarks of such jobs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PER_MACHINE: Final = 8  # arbitrary: ranks per machine, a common number


@dataclass(frozen=True, slots=True)
class Launched:
    """The JSON of an answer (None without one), the last line of stderr, and the seconds of the whole process."""

    said: dict[str, Any] | None
    line: str
    seconds: float

    def need(self, name: str) -> dict[str, Any]:
        """Return the JSON; without one, exit the benchmark with the line."""
        if self.said is None:
            sys.exit(f"{name}: {self.line}")
        return self.said


def launched(script: Path, world_size: int, *options: str, words: tuple[str, ...] = ()) -> Launched:
    """Run a script under torchrun, in its own folder, on H100s.

    Args:
        script: The script.
        world_size: Number of ranks: up to 8, or a multiple of 8.
        options: Options of `vramcast run`.
        words: Words after the script.
    """
    machines = max(world_size // _PER_MACHINE, 1)
    launcher = ["torchrun", f"--nnodes={machines}", f"--nproc_per_node={world_size // machines}", script.name, *words]
    command = [sys.executable, "-m", "vramcast", "run", "--json", "--device", "h100", *options, "--", *launcher]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    line = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    return Launched(json.loads(done.stdout) if done.stdout else None, line, seconds)
