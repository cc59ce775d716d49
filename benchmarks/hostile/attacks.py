"""Estimates from threads, forks, and under alarms, while worker, job, and oracle are killed at random moments.

    python -m benchmarks.hostile.attacks SEED

Prints one JSON line per estimate: {"attack": ..., "wrong": null | "number" | "error", "seen": ...}. Each answer must equal the
undisturbed one, or be a vramcast error; an interruption must reach the caller unchanged.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch.nn as nn

import vramcast
from vramcast.core.errors import VramcastError

# arbitrary: many cheap attacks, few that make a worker restart, which takes seconds
CALM, THREADS, ALARMS, WORKERS, JOBS, ORACLES, FORKS = 130, 58, 14, 10, 54, 50, 5
AT_ONCE = 4  # estimates of one attack with threads
N_ESTIMATES = CALM + AT_ONCE * THREADS + ALARMS + WORKERS + JOBS + ORACLES + 2 * FORKS
_LATEST_S = 0.3  # arbitrary: about as long as such a job takes

Answer = tuple[int | None, ...]


class Late(Exception):
    """A caller's own time limit."""


def multiply(width: int) -> nn.Module:
    """Return a small model of matrix products."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def convolve(width: int) -> nn.Module:
    """Return a small model whose convolutions take workspaces."""
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, width, 5))


def estimate(number: int) -> Answer:
    """Return all peaks of one of eight jobs."""
    width = 64 << number % 4
    is_dense = number < 4
    batch = vramcast.TensorSpec((64, width) if is_dense else (8, 3, 40, 40))
    model = multiply(width) if is_dense else convolve(width)
    tracer = "fake" if number == 7 else "nullgpu"
    found = vramcast.estimate(model, batch, device="a100-40gb", tracer=tracer, timeout_s=60)
    return found.allocated, found.reserved, found.process, found.min_feasible, found.upper_bound


def processes() -> Iterator[tuple[int, int, str]]:
    """Yield number, parent and command line of every process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            yield int(folder.name), parent, (folder / "cmdline").read_text().replace("\0", " ")


def kill(what: str) -> None:
    """Kill a worker of this process, the worker's job, or its oracle, if it exists."""
    found = list(processes())
    ours = {pid: command for pid, parent, command in found if parent == os.getpid()}
    workers = {pid for pid, command in ours.items() if "nullgpu.worker" in command or "tracer.serve" in command}
    targets = {
        "worker": workers,
        "job": {pid for pid, parent, _ in found if parent in workers},
        "oracle": {pid for pid, command in ours.items() if "cudnn.oracle" in command},
    }[what]
    for pid in targets:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _ring(*_: object) -> NoReturn:
    raise Late


class Attacks:
    """The estimates under attack, in a seeded order."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._calm = [estimate(number) for number in range(8)]
        kinds = {
            "calm": CALM,
            "threads": THREADS,
            "alarm": ALARMS,
            "worker": WORKERS,
            "job": JOBS,
            "oracle": ORACLES,
            "fork": FORKS,
        }
        self._order = [kind for kind, count in kinds.items() for _ in range(count)]
        self._draw.shuffle(self._order)
        signal.signal(signal.SIGALRM, _ring)

    def run(self) -> Iterator[dict[str, Any]]:
        """Yield the result of each estimate."""
        for attack in self._order:
            number, delay_s = self._draw.randrange(8), self._draw.uniform(0, _LATEST_S)
            if attack == "threads":
                yield from self._threads(delay_s)
            elif attack == "fork":
                yield from self._fork(number, delay_s)
            elif attack == "alarm":
                signal.setitimer(signal.ITIMER_REAL, delay_s)
                try:
                    yield self._judged(attack, number)
                except Late:  # between the estimate and the next line
                    yield {"attack": attack, "wrong": None, "seen": "late"}
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            elif attack == "calm":
                yield self._judged(attack, number)
            else:
                with _later(delay_s, attack):
                    yield self._judged(attack, number)

    def _judged(self, attack: str, number: int) -> dict[str, Any]:
        try:
            answer = estimate(number)
        except (VramcastError, Late) as error:
            return {"attack": attack, "wrong": None, "seen": type(error).__name__}
        except Exception as error:  # a traceback for the caller
            return {"attack": attack, "wrong": "error", "seen": f"{type(error).__name__}: {error}"[:300]}
        right = answer == self._calm[number]
        seen = "equal" if right else f"job {number}: {answer}, calm {self._calm[number]}"
        return {"attack": attack, "wrong": None if right else "number", "seen": seen}

    def _threads(self, delay_s: float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        numbers = [self._draw.randrange(8) for _ in range(AT_ONCE)]
        threads = [threading.Thread(target=lambda n=n: found.append(self._judged("threads", n))) for n in numbers]
        with _later(delay_s, self._draw.choice(["oracle", "job", "nobody", "nobody"])):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return found

    def _fork(self, number: int, delay_s: float) -> Iterator[dict[str, Any]]:
        """Estimate in a fork that exits like a script, while its parent estimates too."""
        told, tell = os.pipe()
        begun = threading.Event()
        other: list[dict[str, Any]] = []
        beside = threading.Thread(target=lambda: (begun.set(), other.append(self._judged("fork: parent", number))))
        beside.start()
        begun.wait()
        time.sleep(delay_s)  # the fork starts with locks held and a request open
        pid = os.fork()
        if pid == 0:
            os.write(tell, json.dumps(self._judged("fork: child", (number + 1) % 8)).encode())
            sys.exit(0)  # with every atexit function of the parent
        os.close(tell)
        with os.fdopen(told) as said:
            yield json.loads(said.read() or '{"attack": "fork: child", "wrong": "error", "seen": "no answer"}')
        os.waitpid(pid, 0)
        beside.join()
        yield from other


@contextlib.contextmanager
def _later(delay_s: float, what: str) -> Iterator[None]:
    action: Callable[[], None] = (lambda: None) if what == "nobody" else lambda: kill(what)
    timer = threading.Timer(delay_s, action)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def main() -> None:
    """Run the attacks and print their results."""
    for outcome in Attacks(int(sys.argv[1])).run():
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
