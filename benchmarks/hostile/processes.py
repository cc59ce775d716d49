"""Processes: signals, forks, threads, kills, jobs that end their own process; and 500 estimates under attack (attacks.py).

Each case runs with its own temporary folder and its own mark in the environment: a process with the mark, or a file of ours in
the folder, two seconds after the end was left behind.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.hostile.attacks import N_ESTIMATES
from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.command import LIMIT_S, ROOT, judge

SEED = 15
_PROMPT_S = 2.0  # spec: time in which worker, job, and oracle end after their caller
_START_S = 90.0  # arbitrary: time until a job runs on a busy machine
_ANSWERED_SHARE = 0.6  # arbitrary: attacks that mostly end in errors would show nothing

MODELS = """
import atexit, os, subprocess, sys, time
import torch
from torch import nn

def started():
    if "HOSTILE_STARTED" in os.environ: open(os.environ["HOSTILE_STARTED"], "w").close()

def convolve(): return nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 5))

class Endless(nn.Module):
    def __init__(self): super().__init__(); self.layer = convolve()
    def forward(self, x):
        y = self.layer(x)
        started()
        while True: pass

def endless(): return Endless()
def after(code):
    exec(code, globals())
    return convolve()
class Unsayable(Exception):
    def __str__(self): raise ValueError
"""
SCRIPT = """
import sys; sys.path.insert(0, sys.argv[1])
import models
print("the script speaks", flush=True)
models.endless().cuda()(models.torch.ones(8, 3, 40, 40, device="cuda"))
"""
# Actions of a model's factory, the right exit codes with `--tracer nullgpu`, and a required part of stderr.
JOBS: tuple[tuple[str, str, tuple[int, ...], str], ...] = (
    ("os._exit(77)", "os._exit(77)", (3,), "ended with exit code 77"),
    ("os._exit(0)", "os._exit(0)", (3,), "ended with exit code 0"),
    ("os._exit(0) with last words", "print('bye'); os._exit(0)", (3,), "bye"),
    ("sys.exit(0)", "sys.exit(0)", (3,), "ended with exit code 0"),
    ("os.abort()", "os.abort()", (3,), "SIGABRT"),
    ("sys.stdout = None", "sys.stdout = sys.stderr = None", (0,), ""),
    ("sys.stdout closed", "sys.stdout.close()", (0,), ""),
    ("descriptors 1 and 2 closed", "os.close(1); os.close(2)", (0,), ""),
    ("all descriptors closed", "os.closerange(0, 4096)", (3,), "file descriptors"),
    ("an exception whose __str__ raises", "raise Unsayable", (3,), "Unsayable"),
    ("the worker killed by its job", "os.kill(os.getppid(), 9)", (3,), "worker was killed"),
    ("forks, both come back", "os.fork()", (0,), ""),
    ("forks, the child leaves by sys.exit", "os.fork() or sys.exit()", (0,), ""),
    ("forks, the child runs atexit's", "os.fork() or atexit._run_exitfuncs()", (0,), ""),
    ("a process that outlives it", "subprocess.Popen(['sleep', '600'], start_new_session=True)", (0,), ""),
    ("a daemon, forked twice", "os.fork() or (os.setsid(), os.fork() or time.sleep(600), os._exit(0))", (0,), ""),
    ("symmetric memory", "from torch.distributed import _symmetric_memory as m; m.empty(8, device='cuda')", (0,), ""),
    ("a megabyte of output", "print('x' * (1 << 20))", (0,), ""),
)
# Programs of a caller; each prints its faults, or nothing. `est(n)` is a small job, `conv()` one with workspaces.
PRELUDE = """
import multiprocessing, os, signal, sys, threading, time
import torch.nn as nn, vramcast
from benchmarks.hostile.attacks import Late, estimate, kill, processes
from vramcast import TensorSpec as T
def peaks(model, batch, **more): return vramcast.estimate(model, batch, device="a100-40gb", **more).reserved
def est(n): return peaks(lambda: nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n)), T((64, n)))
def conv(n=64): return peaks(lambda: nn.Sequential(nn.Conv2d(3, n, 3), nn.Conv2d(n, n, 5)), T((8, 3, 40, 40)))
def same(seen, calm):
    if seen != calm: print(f"{seen} instead of {calm}")
def late(*_): raise Late
"""
CALLERS: dict[str, str] = {
    **{
        f"an alarm after {delay_s:g} s, its handler raises": f"""
calm = est(256); signal.signal(signal.SIGALRM, late); signal.setitimer(signal.ITIMER_REAL, {delay_s})
try: est(8192)
except Late: pass
signal.setitimer(signal.ITIMER_REAL, 0)
same([est(256), est(256)], [calm, calm])
"""
        for delay_s in (0.02, 0.05, 0.1)
    },
    "a job that forks and returns twice": """
def forks(): os.fork(); return nn.Linear(64, 64)
calm = est(64), est(4096)
for tracer in ("fake", "auto"):
    try: peaks(forks, T((8, 64)), tracer=tracer)
    except vramcast.VramcastError: pass
    same((est(64), est(4096)), calm)
""",
    "a pool of forked callers": """
calm = conv()
with multiprocessing.get_context("fork").Pool(2) as pool: same(pool.map(conv, [64, 64]), [calm, calm])
same(conv(), calm)
""",
    "os.fork and sys.exit": """
calm = conv()
if os.fork() == 0: sys.exit(0)
os.wait(); same(conv(), calm)
""",
    "a fork while a thread asks": """
calm = conv(); thread = threading.Thread(target=est, args=(8192,)); thread.start(); time.sleep(0.1)
pid = os.fork()
if pid == 0: same(conv(), calm); sys.exit(0)
os.waitpid(pid, 0); thread.join(); same(conv(), calm)
""",
    "the oracle killed between jobs": """
calm = conv(); kill("oracle"); same([conv(), conv()], [calm, calm])
""",
    "the worker killed between jobs": """
calm = conv(); kill("worker"); time.sleep(0.1); same(conv(), calm)
""",
    "eight threads": """
calm = [estimate(n) for n in range(8)]; found = {}
threads = [threading.Thread(target=lambda n=n: found.update({n: estimate(n)})) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
same([found[n] for n in range(8)], calm)
""",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A place for one case: its temporary folder, and the mark in the environment of all its processes."""

    folder: Path
    mark: str = field(default_factory=lambda: f"hostile-{os.getpid()}-{time.monotonic_ns()}")

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of the case."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = f"{ROOT}"
        return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(self.folder), "HOSTILE_MARK": self.mark, **more}

    def left_behind(self) -> str:
        """Return what remains two seconds after the end; "" for nothing."""
        end = time.monotonic() + _PROMPT_S
        while (
            found := " ".join([*self._processes(), *(path.name for path in self.folder.glob("vramcast-*"))])
        ) and time.monotonic() < end:
            time.sleep(0.05)
        return found

    def _processes(self) -> Iterator[str]:
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"HOSTILE_MARK={self.mark}".encode() in path.read_bytes().split(b"\0"):
                    yield f"process {path.parent.name} ({(path.parent / 'cmdline').read_text().replace(chr(0), ' ')[:80]})"
            except OSError:  # ended, or not ours
                continue


def _whole(place: Place, verdict: Verdict) -> Verdict:
    """Return the verdict, or a fault if something was left behind."""
    if (left := place.left_behind()) and verdict.is_handled:
        return Verdict(Wrong.ORPHAN, left[:300])
    return verdict


def _run(place: Place, command: list[str], limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str] | Verdict:
    try:
        return subprocess.run(
            [sys.executable, *command],
            env=place.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, cwd=ROOT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Verdict(Wrong.HANG, f"did not end within {limit_s:.0f} s")


def job(place: Place, target: str, codes: tuple[int, ...], says: str, *options: str) -> Verdict:
    """Estimate a hostile target."""
    command = ["-m", "vramcast", "estimate", target, "--batch", "8x3x40x40", "--tracer", "nullgpu", "--json", *options]
    done = _run(place, command)
    if isinstance(done, Verdict):
        return done
    return _whole(place, judge(done.returncode, done.stdout, done.stderr, codes=codes, is_json=True, says=says))


def caller(place: Place, source: str) -> Verdict:
    """Run a program that uses the Python interface."""
    done = _run(place, ["-c", PRELUDE + source], 2 * LIMIT_S)
    if isinstance(done, Verdict):
        return done
    if done.returncode:
        return Verdict(Wrong.TRACEBACK, done.stderr.strip().splitlines()[-1][:300])
    return _whole(place, Verdict(Wrong.NUMBER, done.stdout.strip()[:300]) if done.stdout.strip() else HANDLED)


def told_to_end(place: Place, arguments: list[str], number: signal.Signals, delay_s: float | None) -> Verdict:
    """Send a signal to the command line after `delay_s` seconds; with None, when its job runs."""
    started = place.folder.parent / f"{place.folder.name}.started"
    process = subprocess.Popen(
        [sys.executable, "-m", "vramcast", *arguments], env=place.environment(HOSTILE_STARTED=str(started)),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    end = time.monotonic() + (_START_S if delay_s is None else delay_s)
    while time.monotonic() < end and not started.exists():
        time.sleep(0.02)
    if delay_s is None and not started.exists():
        process.kill()
        return Verdict(Wrong.HANG, "the job did not begin")
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=_PROMPT_S if number != signal.SIGINT else LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return Verdict(Wrong.HANG, f"a process holds its pipes {_PROMPT_S:g} s after {number.name}")
    stops = number == signal.SIGINT and arguments[0] == "run"  # the first Ctrl-C: the peaks so far
    if process.returncode not in ((0,) if stops else (-number, 128 + number)):
        return Verdict(Wrong.EXIT_CODE, f"exit {process.returncode} after {number.name}: {err.strip()[-200:]}")
    if "Traceback" in err:
        return Verdict(Wrong.TRACEBACK, err.strip().splitlines()[-1])
    if arguments[0] == "run" and "the script speaks" not in err:
        return Verdict(Wrong.UNCLEAR, "the script's output does not reach stderr")
    return _whole(place, HANDLED)


def at_once(place: Place, target: str, count: int, cache: Path | None) -> Verdict:
    """Run several command lines at the same time, with the user's cache or an empty one."""
    environment = place.environment(**({"VRAMCAST_CACHE": str(cache)} if cache else {}))
    command = [sys.executable, "-m", "vramcast", "estimate", target, "--batch", "8x3x40x40", "--tracer", "nullgpu", "--json"]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(count)
    ]
    found = []
    for one in running:
        out, err = one.communicate(timeout=4 * LIMIT_S)
        verdict = judge(one.returncode, out, err, codes=(0,), is_json=True)
        if not verdict.is_handled:
            return verdict
        found.append(json.loads(out)["peaks"])
    return _whole(place, HANDLED if all(one == found[0] for one in found) else Verdict(Wrong.NUMBER, str(found)[:300]))


class _Attacked:
    """The estimates of attacks.py, one per line; the first request starts the program."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lines: Iterator[str] | None = None
        self._answered = 0

    def _start(self) -> Iterator[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hostile.attacks", str(SEED)], env=self._place.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._process.stdout is not None
        return iter(self._process.stdout)

    def next(self) -> Verdict:
        """Return the verdict on the next estimate."""
        if self._lines is None:
            self._lines = self._start()
        line = next(self._lines, None)
        if line is None:
            return Verdict(Wrong.TRACEBACK, f"the caller itself ended, exit {self._process.wait()}")
        outcome: dict[str, Any] = json.loads(line)
        self._answered += outcome["seen"] == "equal"
        wrong = {"number": Wrong.NUMBER, "error": Wrong.TRACEBACK}.get(outcome["wrong"] or "")
        return Verdict(wrong, f"{outcome['attack']}: {outcome['seen']}") if wrong else HANDLED

    def end(self) -> Verdict:
        """Return whether everything ended and most estimates were answered."""
        if self._process.wait(_START_S):
            return Verdict(Wrong.TRACEBACK, f"the caller itself ended, exit {self._process.returncode}")
        if self._answered < _ANSWERED_SHARE * N_ESTIMATES:
            return Verdict(Wrong.UNCLEAR, f"only {self._answered} of {N_ESTIMATES} estimates were answered")
        return _whole(self._place, HANDLED)


def cases(folder: Path) -> Iterable[Case]:
    """Yield the cases of this group."""
    numbers = itertools.count()

    def place() -> Place:
        return Place(folder / f"t{next(numbers)}")

    def case(kind: str, name: str, run: Callable[..., Verdict], *arguments: Any) -> Case:
        return Case(kind, name, lambda: run(place(), *arguments))

    (folder / "models.py").write_text(MODELS)
    (folder / "train.py").write_text(SCRIPT)
    models = folder / "models.py"
    endless = ["estimate", f"{models}:endless", "--batch", "8x3x40x40", "--device", "a100-40gb"]
    script = ["run", "--device", "a100-40gb", "--", str(folder / "train.py"), str(folder)]
    kind = "signals to the command line during a job"
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGINT):
        yield case(kind, f"{number.name}, estimate", told_to_end, endless, number, None)
        yield case(kind, f"{number.name}, run", told_to_end, script, number, None)
    for number, delay_s in itertools.product((signal.SIGTERM, signal.SIGKILL), (1.0, 2.5, 4.0)):
        yield case(kind, f"{number.name} after {delay_s:g} s", told_to_end, endless, number, delay_s)

    kind = "file targets, hostile code"
    for name, code, codes, says in JOBS:
        yield case(kind, name, job, f"{models}:after?{json.dumps({'code': code})}", codes, says)
    yield case(kind, "--timeout 0", job, f"{models}:convolve", (2,), "must be between", "--timeout", "0")
    yield case(kind, "--timeout 3, endless", job, f"{models}:endless", (3,), "did not end within 3 s", "--timeout", "3")

    kind = "processes: fork, alarm, oracle killed, threads, command lines at once"
    for name, source in CALLERS.items():
        yield case(kind, name, caller, source)
    yield case(kind, "four command lines at once", at_once, f"{models}:convolve", 4, None)
    yield case(kind, "two command lines at once, empty cache", at_once, f"{models}:convolve", 2, folder / "cache")

    kind = "estimates under attack by threads, forks, alarms and kills"
    attacked = _Attacked(place())
    for n in range(N_ESTIMATES):
        yield Case(kind, f"estimate {n}", attacked.next)
    yield Case("processes and folders after the attacks", "all ended", attacked.end)
