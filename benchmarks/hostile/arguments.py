"""Callers' input: values of options, the environment of the process, arguments of `estimate`."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.hostile import inside
from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.command import LIMIT_S, ROOT, judge

MODELS = """
import torch
def mlp(): return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
def long(): raise RuntimeError("x" * 10_000_000)
def speaks(): raise RuntimeError("Größe \\x1b[31m \\udc80")
"""
_NOBODY = """
import pwd
def _nobody(uid): raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = _nobody
"""
_BATCH = ("--batch", "8x64")
_ON = ("--on", "rtx3060")

# Options in addition to TARGET and --batch, the right exit codes, and a required part of the message.
_VALUES: tuple[tuple[tuple[str, ...], tuple[int, ...], str], ...] = (
    *(((option, ""), (2,), option) for option in (
        "--memory", "--labels", "--device", "--on", "--artifact", "--snapshot", "--plot", "--stack", "--optimizer", "--level",
        "--steps", "--timeout", "--num-classes", "--lr", "--precision", "--tracer", "--cards",
    )),
    (("--memory", "12"), (2,), "unit"),
    (("--memory", "11441"), (2,), "unit"),
    (("--memory", "0"), (2,), "not positive"),
    (("--memory=-12GiB",), (2,), "12GiB"),
    (("--memory", "1e400"), (2,), "12GiB"),
    (("--memory", "99999999999999999999999GiB"), (2,), "2^63"),
    *((("--timeout", value), (2,), "--timeout") for value in ("-1", "0", "nan", "inf", "1e400", "1e10")),
    *((("--level", value), (2,), "level") for value in ("0", "1", "-0.1", "nan", "inf", "1e400")),
    *((("--steps", value), (2,), "steps") for value in ("0", "-1", "9" * 30, "1.5", "nan", "9" * 5000)),
    *((("--lr", value), (2,), "lr") for value in ("nan", "-1", "inf")),
    *((("--num-classes", value), (2,), "num_classes") for value in ("-1", "10")),
    (("--labels", "8:int64=1.5"), (2,), "1.5"),
    (("--labels", "8:int64<0"), (2,), "at least 1"),
    (("--labels", "8:int8<1000"), (2,), "at most 128"),
    (("--labels", "8:int64=" + "9" * 400), (2,), "is not understood"),
    (("--batch", "x=8x64"), (2,), "mixes"),
    (("--what-if", "max_split_size_mb:x"), (2,), "max_split_size_mb"),
    (("--what-if", "", "--cards", "24"), (2,), "unit"),
    (("--cards", "24GiB"), (2,), "--what-if"),
)  # fmt: skip
# Cases that are detected when the job is traced.
_TRACED: tuple[tuple[tuple[str, ...], tuple[int, ...], str], ...] = (
    (("--memory", "256MiB"), (0, 1), ""),
    (("--memory", str(2**63 - 1)), (0,), ""),
    (("--timeout", "0.01"), (3,), "did not end"),
    (("--labels", "8:int64=8"), (2,), "8 classes"),
    (("--labels", "8:int64=-5"), (2,), "-5"),
    (("--labels", "8:int64=-100"), (0,), ""),
    (("--labels", "8:int64=7"), (0,), ""),
    (("--optimizer", "adam:lr=NaN"), (2, 3), ""),
    (("--batch", "8x64"), (2,), "labels"),
)
_BATCHES = (
    ("8x" + "9" * 19, (2,)), ("8x" + "9" * 5000, (2,)), ("4294967296x4294967296", (2,)), ("-8x64", (2,)),
    ("8x64:float32=nan", (2,)), ("8x64:float32<5", (2,)), ("8x64:uint8=256", (2,)), ("8x64:nosuch", (2,)), ("8,64", (2,)),
)  # fmt: skip


def cases(folder: Path) -> Iterable[Case]:
    """Yield the cases; write models and other files to `folder`."""
    (folder / "m.py").write_text(MODELS)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(_NOBODY)
    yield from _of_values(folder)
    yield from _of_environments(folder)
    yield from _of_the_api()


# ------------------------------------------------------------------------------------------------ values of options
def _of_values(folder: Path) -> Iterable[Case]:
    target = f"{folder}/m.py:mlp"

    def case(name: str, run: Any, arguments: Iterable[str], codes: tuple[int, ...], says: str = "") -> Case:
        verdict = functools.partial(judge, codes=codes, says=says, check=_ordered, is_json=True)
        return Case("CLI values", name, functools.partial(run, (*arguments, "--json"), verdict))

    refused, traced = inside.forked, inside.here
    for run, given, codes, says in [*((refused, *row) for row in _VALUES), *((traced, *row) for row in _TRACED)]:
        shown = " ".join(value if len(value) < 30 else f"{value[:30]}..." for value in given)
        yield case(shown, run, ("check", target, *_BATCH, *_ON, *given), codes, says)
    for batch, codes in _BATCHES:
        yield case(f"--batch {batch[:30]}", refused, ("estimate", target, "--batch", batch), codes)
    yield case("an input twice", refused, ("estimate", target, "--batch", "x=8x64", "--batch", "x=8x64"), (2,), "twice")
    yield case("a huge sweep", refused, ("sweep", target, *_BATCH, "--batch-sizes", "1..900000000000000000"), (2,), "2^63")
    yield case("no rows", traced, ("estimate", target, "--batch", "0x64"), (0, 3))
    yield case("a message of 10 MB", traced, ("estimate", f"{folder}/m.py:long", *_BATCH), (3,), "characters cut")
    yield case("a message of odd characters", traced, ("estimate", f"{folder}/m.py:speaks", *_BATCH), (3,), "RuntimeError")


def _ordered(found: dict[str, Any]) -> str:
    peaks = found["peaks"]
    parts = [peaks["allocated"], peaks["reserved"], peaks["process"], found["upper_bound"]["bytes"]]
    return "" if parts == sorted(parts) and parts[0] > 0 else f"the peaks are not in order: {parts}"


# ------------------------------------------------------------------------------------------------ the environment
def _of_environments(folder: Path) -> Iterable[Case]:
    calm: list[dict[str, Any]] = []
    check = f"check '{folder}/m.py:mlp' --batch 8x64 --on rtx3060 --json"

    def shell(text: str, codes: tuple[int, ...], says: str, changed: dict[str, str | None], answers: bool) -> Verdict:
        command = text.replace("VRAMCAST", f"'{sys.executable}' -m vramcast").replace("CHECK", check)
        full = {**os.environ, "PYTHONPATH": str(ROOT), **changed}
        environment = {name: value for name, value in full.items() if value is not None}
        try:
            done = subprocess.run(
                ["/bin/bash", "-c", command],
                env=environment, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Verdict(Wrong.HANG, f"did not end within {LIMIT_S:.0f} s")
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        found = judge(done.returncode, out, err, codes=codes, says=says, check=as_calm, is_json=answers)
        lost = "2>&-" in text or "2>/dev/full" in text  # the reason could not be printed
        return HANDLED if lost and found.wrong is Wrong.UNCLEAR else found

    def as_calm(found: dict[str, Any]) -> str:
        calm.append(found)
        same = calm[0]["peaks"] == found["peaks"]
        return "" if same else f"{found['peaks']}, and in a calm environment {calm[0]['peaks']}"

    def case(name: str, text: str, codes: tuple[int, ...], says: str = "", answers: bool = True, **changed: str | None) -> Case:
        return Case("environment", name, functools.partial(shell, text, codes, says, changed, answers))

    yield case("calm", "VRAMCAST CHECK", (0,))
    # Destinations of answers and messages.
    yield case("stdout is full", "VRAMCAST CHECK >/dev/full", (3,), "cannot be written", answers=False)
    yield case("stdout is full, help", "VRAMCAST --help >/dev/full", (3,), "cannot be written", answers=False)
    yield case("stdout is closed", "VRAMCAST CHECK >&-", (3,), "stdout is closed", answers=False)
    yield case("stdout is closed, version", "VRAMCAST --version >&-", (3,), "stdout is closed", answers=False)
    yield case("stdout and stderr are closed", "VRAMCAST CHECK >&- 2>&-", (3,), answers=False)
    yield case("all three are closed", "VRAMCAST CHECK <&- >&- 2>&-", (3,), answers=False)
    yield case("stderr is closed", "VRAMCAST CHECK 2>&-", (0,))
    yield case("stderr is full", "VRAMCAST CHECK 2>/dev/full", (0,))
    yield case("stderr is closed, wrong usage", "VRAMCAST CHECK --steps 0 2>&-", (2,))
    yield case("stdin is closed", "VRAMCAST CHECK <&-", (0,))
    yield case("no reader", "set -o pipefail; VRAMCAST --help | true", (0,), answers=False)
    # Home, user, places.
    yield case("no HOME", "VRAMCAST CHECK", (0,), HOME=None)
    nobody = {"HOME": None, "USER": None, "LOGNAME": None, "PYTHONPATH": f"{ROOT}:{folder}/site"}
    yield case("no entry for the user", "VRAMCAST CHECK", (0,), **nobody)
    yield case("nor a cache", "VRAMCAST CHECK", (0, 3), "VRAMCAST_CACHE", **nobody, VRAMCAST_CACHE=None)
    yield case("HOME is no folder", "VRAMCAST CHECK", (0, 3), "VRAMCAST_CACHE", HOME="/dev/null", VRAMCAST_CACHE=None)
    yield case("the cache is a file", "VRAMCAST CHECK", (0, 3), "VRAMCAST_CACHE", VRAMCAST_CACHE="/dev/null")
    yield case("TMPDIR is missing", "VRAMCAST CHECK", (0,), TMPDIR="/no/such/folder")
    yield case("the current folder is gone", "mkdir gone; cd gone; rmdir ../gone; VRAMCAST CHECK", (2,), "current folder")
    yield case("the current folder is read-only", "cd /proc; VRAMCAST CHECK", (0,))
    # Limits.
    for kib in (100_000, 300_000, 2_000_000):
        yield case(f"ulimit -v {kib}", f"ulimit -v {kib}; VRAMCAST CHECK", (3,))
    yield case("ulimit -f 0", f"ulimit -f 0; VRAMCAST CHECK --snapshot '{folder}/s.pickle'", (2, 3), answers=False)
    yield case("ulimit -n 12", "ulimit -n 12; VRAMCAST CHECK", (0, 3))
    # Variables.
    yield case("no docstrings", "VRAMCAST CHECK", (0,), PYTHONOPTIMIZE="2")
    yield case("LANG=C", "VRAMCAST CHECK", (0,), LANG="C", LC_ALL="C")
    yield case("ASCII", "VRAMCAST CHECK --plot -", (0,), PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    yield case("no bytecode, warnings shown", "VRAMCAST CHECK", (0,), PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="always")
    yield case("VRAMCAST_ARTIFACT is empty", "VRAMCAST CHECK", (0,), VRAMCAST_ARTIFACT="")
    yield case("VRAMCAST_ARTIFACT is missing", "VRAMCAST CHECK", (2,), "artifact", VRAMCAST_ARTIFACT="/no/such")
    yield case("CC is missing", "VRAMCAST CHECK", (0, 3), CC="/no/such/cc")
    yield case("PATH is empty", "VRAMCAST CHECK", (0, 3), PATH="")


# ------------------------------------------------------------------------------------------------ the Python API
def _named(given: dict[str, Any]) -> str:
    return json.dumps(given, default=lambda value: type(value).__name__)


def _of_the_api() -> Iterable[Case]:
    import torch

    import vramcast as api

    x = torch.zeros(8, 64)

    def estimate(**given: Any) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
        return api.estimate(given.pop("model", model), given.pop("batch", x), **{"device": "rtx3060", **given})

    def refused(given: dict[str, Any], says: str) -> Verdict:
        try:
            found = estimate(**given)
        except api.UsageError as error:
            return HANDLED if says in str(error) else Verdict(Wrong.UNCLEAR, f"'{says}' is not in: {error}")
        return Verdict(Wrong.NUMBER, f"answered: {found.process} bytes")

    def like_calm(given: dict[str, Any]) -> Verdict:
        found, calm = estimate(**given), estimate()
        same = (found.allocated, found.reserved, found.process) == (calm.allocated, calm.reserved, calm.process)
        return HANDLED if same else Verdict(Wrong.NUMBER, f"{found.process} bytes, and {calm.process} with plain arguments")

    def case(name: str, run: Callable[[], Verdict]) -> Case:
        return Case("Python API", name, run)

    for given, says in (
        ({"batch": (x for _ in range(2))}, "next(iter(loader))"), ({"batch": [iter([x])]}, "next(iter(loader))"),
        ({"batch": x.to_sparse()}, "sparse"), ({"batch": lambda: x}, "holds no tensor"), ({"batch": sys.stdout}, "TextIO"),
        ({"labels": (n for n in range(2))}, "generator"), ({"labels": torch.full((8,), 8)}, "8 classes"),
        ({"labels": torch.full((8,), -5)}, "-5"),
        ({"memory": True}, "True"), ({"memory": 1.5}, "1.5"), ({"memory": float("nan")}, "nan"), ({"memory": 12}, "unit"),
        ({"memory": ""}, "''"), ({"memory": -(2**33)}, "-8589934592"), ({"memory": 2**70}, "at most"),
        ({"level": "0.9"}, "'0.9'"), ({"level": 1.0}, "between 0 and 1"), ({"level": float("nan")}, "nan"),
        ({"steps": "3"}, "'3'"), ({"steps": 0}, "at least 1"), ({"steps": 2.5}, "2.5"), ({"lr": "0.1"}, "'0.1'"),
        ({"device": None}, "None"), ({"device": 0}, "device is 0"), ({"device": ""}, "''"), ({"alloc_conf": 1}, "is 1"),
        ({"timeout_s": -1}, "between"), ({"timeout_s": float("inf")}, "inf"), ({"timeout_s": "5"}, "'5'"),
        ({"loss": "mse"}, "'mse'"), ({"optimizer": None}, "None"), ({"precision": None}, "None"), ({"tracer": None}, "None"),
        ({"stack": 5}, "stack is 5"), ({"artifact": 5}, "artifact is 5"), ({"checkpointing": "no"}, "'no'"),
        ({"model": None}, "None"),
    ):  # fmt: skip
        yield case(_named(given), functools.partial(refused, given, says))
    for given in (
        {"memory": 12_622_168_064.0}, {"steps": 3.0}, {"level": 0.5}, {"timeout_s": 600}, {"batch": api.TensorSpec((8, 64))},
        {"device": "RTX 3060"}, {"batch": (x,)}, {"lr": 1},
    ):  # fmt: skip
        yield case(f"{_named(given)}, like plain arguments", functools.partial(like_calm, given))
