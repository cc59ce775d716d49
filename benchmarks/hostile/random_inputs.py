"""2,000 seeded random inputs: values of options for all verbs, environments, files, and jobs.

The right answer is unknown, but not the right ending: an exit code of the contract, no traceback, a message of vramcast's own
if there is no answer, one JSON object where expected, and 1 only if the answer states that something does not fit. Well-formed
jobs must get the same numbers as alone, in an interpreter of their own.
"""

from __future__ import annotations

import functools
import json
import random
import shutil
import string
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hostile import inside
from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.command import ROOT, judge, vramcast

SEED = 15  # arbitrary
N_VALUES, N_JOBS, N_FILES, N_ENVIRONMENTS, N_STARTS = 800, 300, 640, 240, 20  # arbitrary: 2,000 in all
_CODES = (0, 1, 2, 3, 4)

_MODELS = """
import torch
from torch import nn
def mlp(): return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
def wide(): return nn.Sequential(nn.Linear(64, 4096), nn.GELU(), nn.Linear(4096, 8))
def cnn(): return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 8))
def raises(): raise RuntimeError("no")
"""
_JOBS = (("mlp", "8x64"), ("mlp", "256x64"), ("wide", "8x64"), ("wide", "512x64"), ("cnn", "4x3x16x16"))

_NUMBERS = (
    "", "0", "-1", "1", "2", "3", "0.5", "0.99", "1e400", "-1e400", "nan", "inf", "9" * 20, "9" * 400, "1e-320", "0x10", "٣",
    "1_0", " 4 ",
)  # fmt: skip
_SIZES = (
    "", "0", "12", "12GiB", "-1GiB", "1e9", "9" * 25 + "GiB", "0.0000001KiB", "24 gib", "12GiBs", "nanGiB", "300MiB",
)  # fmt: skip
_WORDS = (
    "", "x", "h200", "rtx3060", "a100-40gb", "adam", "sgdm", "adamw:fused=", "bf16", "infer", "../..", "/", "\x1b[31m", "'",
    "é\U0001f600", "%s%n", "{}", "a" * 3000, "--", "-", "None", "torch==2.8.0", "cudnn==,",
)  # fmt: skip
_SPECS = (
    "", "8x64", "0x64", "8", "x", "8x", "8x-1", "8x64:int64<9", "8x64:int64<0", "8x64:int64=9", "8x64:uint8=-1", "y=8x64",
    "8x64:bool", "99999999999x99999999999", "8x64:float16=1.5", "8x64:complex64",
)  # fmt: skip
_CONFS = (
    "", "common", "expandable_segments:True", "max_split_size_mb:-5", "max_split_size_mb:" + "9" * 30, ":",
    "roundup_power2_divisions:[", "backend:cudaMallocAsync", "garbage_collection_threshold:nan",
)  # fmt: skip
# Options that take a value, and the sources of their values.
_JOB_OPTIONS: dict[str, Sequence[str]] = {
    "--batch": _SPECS, "--labels": _SPECS, "--memory": _SIZES, "--device": _WORDS, "--alloc-conf": _CONFS, "--stack": _WORDS,
    "--tracer": _WORDS, "--artifact": _WORDS, "--level": _NUMBERS, "--steps": ("", "0", "-1", "1", "nan", "9" * 30),
    "--timeout": _NUMBERS, "--num-classes": _NUMBERS, "--optimizer": _WORDS, "--lr": _NUMBERS, "--precision": _WORDS,
    "--mode": _WORDS, "--zero-grad": _WORDS, "--snapshot": ("", "/", "/no/such/file"), "--plot": _WORDS, "--what-if": _CONFS,
    "--cards": _SIZES,
}  # fmt: skip
_OPTIONS: dict[str, dict[str, Sequence[str]]] = {
    "replay": {"--device-index": _NUMBERS, "--context": _SIZES, "--what-if": _CONFS, "--cards": _SIZES, "--plot": _WORDS},
    "plan": {"--device-index": _NUMBERS, "--limit": _SIZES, "--link": _WORDS, "--chart": _WORDS, "--alloc-conf": _CONFS},
    "measure": {"--seed": _NUMBERS, "--first": _NUMBERS, "--budget-s": _NUMBERS, "--workers": _NUMBERS},
    "import": {"--join": _WORDS},
    "train": {"--jobs": _NUMBERS, "--seed": _NUMBERS, "--folds": _NUMBERS, "--trials": _NUMBERS, "--against": _WORDS},
    "calibrate": {"--jobs": _NUMBERS, "--artifact": _WORDS},
    "evaluate": {"--jobs": _NUMBERS, "--level": _NUMBERS, "--seed": _NUMBERS, "--artifact": _WORDS},
}  # fmt: skip
_VARIABLES: dict[str, Sequence[str]] = {
    "VRAMCAST_CACHE": ("", "/dev/null", "/no/such", "/proc"), "VRAMCAST_ARTIFACT": _WORDS, "VRAMCAST_CUDNN_DIR": _WORDS,
    "HOME": ("", "/no/such", "/dev/null"), "TMPDIR": ("", "/no/such", "/dev/null"), "COLUMNS": _NUMBERS, "LINES": _NUMBERS,
    "PATH": ("", "/no"), "LANG": ("", "C", "xx_YY.UTF-99"), "LC_ALL": ("", "C", "POSIX"), "TERM": ("", "dumb"), "TZ": _WORDS,
    "CC": ("", "/no/such", "false", "echo"), "PYTORCH_CUDA_ALLOC_CONF": _CONFS, "CUDA_VISIBLE_DEVICES": ("", "-1", "7", "x"),
    "NULLGPU_CUDNN_SOCKET": _WORDS, "USER": ("",),
}  # fmt: skip
_STARTS: dict[str, Sequence[str]] = {  # read by Python at its start
    "PYTHONOPTIMIZE": ("", "1", "2"), "PYTHONIOENCODING": ("ascii", "latin-1", "utf-8:strict"), "PYTHONUTF8": ("0", "1"),
    "PYTHONHASHSEED": ("0", "random"), "PYTHONUNBUFFERED": ("1",), "PYTHONINTMAXSTRDIGITS": ("640", "0"),
}  # fmt: skip
_TABLES = {
    "sacct": "JobID|JobName|State|Elapsed|AllocTRES|TRESUsageInMax\n1|a|COMPLETED|0:10:00|gres/gpu:a100=1|gres/gpumem=12345M\n",
    "csv": "name,gpu,peak_bytes\nresnet,A100,123456789\nbert,T4,9999999\n",
    "jobstats": '{"nodes": {"a": {"gpu_used_memory": {"0": 123456}, "gpu_total_memory": {"0": 85899345920}}}}\n',
    "sacct-json": '{"jobs": [{"job_id": 1, "name": "a", "tres": {"requested": {"max": []}}}]}\n',
}
_RUN = {
    "schema": 1, "id": "a", "workload": {"name": "a", "batch": ["8x64"]}, "passport": {"measured_by": "test", "gpu": "T4"},
    "measurement": {"status": "ok", "allocated_bytes": 1000000, "reserved_bytes": 2000000, "process_bytes": 500000000},
}  # fmt: skip


def cases(folder: Path) -> Iterable[Case]:
    """Yield the cases, the same ones each time; cases that need no worker come before the first worker."""
    draw = random.Random(SEED)
    (folder / "m.py").write_text(_MODELS)
    files = _Files(folder, draw)
    yield from _files(files, draw)
    yield from _values(files, draw)
    yield from _environments(files, draw)
    yield from _jobs(folder, draw)


def judged(code: int, out: str, err: str, *, is_json: bool) -> Verdict:
    """Return the verdict on a command with an unknown right answer."""
    verdict = judge(code, out, err, codes=_CODES, is_json=is_json)
    if verdict is not HANDLED:
        return verdict
    if code == 1 and not any(
        word in out + err
        for word in ("does not fit", '"max_batch": null', "not even 1", '"feasible": false', "above the limit")
    ):
        return Verdict(Wrong.EXIT_CODE, f"exit 1, and nothing does not fit: {err[-200:]}")
    if "This error is unexpected" in err:
        return Verdict(Wrong.UNCLEAR, f"unforeseen: {err[-200:]}")
    if code in (2, 3) and "vramcast: " not in err:
        return Verdict(Wrong.UNCLEAR, f"exit {code} without a message of vramcast's: {err[-200:]}")
    return HANDLED


def _case(kind: str, arguments: Sequence[str], *, environment: dict[str, str] | None = None) -> Case:
    verdict = functools.partial(judged, is_json="--json" in arguments)
    return Case(kind, _shown(arguments, environment), functools.partial(inside.forked, arguments, verdict, environment))


def _shown(arguments: Sequence[str], environment: dict[str, str] | None = None) -> str:
    words = [*(f"{name}={value}" for name, value in (environment or {}).items()), *arguments]
    return " ".join(ascii(word)[1:-1][-40:] or "''" for word in words)[:200]


def _drawn(options: dict[str, Sequence[str]], draw: random.Random, most: int) -> list[str]:
    names = draw.sample(sorted(options), draw.randint(1, min(most, len(options))))
    return [f"{name}={draw.choice(options[name])}" for name in names]


# ------------------------------------------------------------------------------------------------ files
class _Files:
    """Valid files of each kind, made by this vramcast, and invalid ones made from them."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self.draw, self._count = folder, draw, 0
        snapshot, trace = folder / "good.pickle", folder / "good.npz"
        code = (
            "import sys, vramcast, torch\n"
            "found = vramcast.estimate(torch.nn.Linear(64, 8), vramcast.TensorSpec((8, 64)), device='t4')\n"
            "found.save_snapshot(sys.argv[1]); found.trace.save(sys.argv[2])"
        )
        subprocess.run([sys.executable, "-c", code, str(snapshot), str(trace)], check=True, cwd=ROOT, capture_output=True)
        runs = folder / "good.jsonl"
        runs.write_text("".join(json.dumps({**_RUN, "id": str(n)}) + "\n" for n in range(5)))
        artifact = folder / "good-artifact"
        shutil.copytree(ROOT / "models" / "default", artifact)
        self.good = {"snapshot": snapshot, "trace": trace, "runs": runs, "artifact": artifact}
        for name, text in _TABLES.items():
            self.good[name] = folder / f"good.{name}"
            self.good[name].write_text(text)

    def bad(self, kind: str) -> Path:
        """Return a file of that kind, randomly changed."""
        self._count += 1
        good = self.good[kind]
        if kind == "artifact":
            place = self.folder / f"bad{self._count}"
            place.mkdir()
            (place / "artifact.json").write_bytes(self._changed((good / "artifact.json").read_bytes()))
            return place
        place = self.folder / f"bad{self._count}{good.suffix}"
        place.write_bytes(self._changed(good.read_bytes()))
        return place

    def _changed(self, data: bytes) -> bytes:
        draw, at = self.draw, self.draw.randrange(len(data))
        how = draw.randrange(9)
        if how == 0:
            return data[:at]
        if how == 1:
            changed = bytearray(data)
            for _ in range(draw.choice((1, 4, 64))):
                changed[draw.randrange(len(data))] = draw.randrange(256)
            return bytes(changed)
        if how == 2:
            return data[:at] + bytes(draw.choice((1, 100, 5000))) + data[at:]
        if how == 3:
            return draw.randbytes(draw.choice((0, 1, 100, 10_000)))
        if how == 4:
            return bytes(draw.choice((1, 4096)))
        if how == 5:
            return data + data
        if how == 6:
            return b"[" * 100_000
        # Another number, or an invalid one.
        digits = [
            n for n, byte in enumerate(data) if chr(byte) in string.digits and (n == 0 or chr(data[n - 1]) not in string.digits)
        ]
        if not digits:
            return data[at:]
        begin = draw.choice(digits)
        end = begin
        while end < len(data) and chr(data[end]) in string.digits:
            end += 1
        other = draw.choice(
            (b"-1", b"1e400", b"NaN", b"9" * 400, b"99999999999999999999", b"null", b'"x"', b"0", b"{}", b"-Infinity")
        )
        return data[:begin] + other + data[end:]


def _files(files: _Files, draw: random.Random) -> Iterable[Case]:
    """Yield commands on files that are damaged or of another kind."""
    kinds = sorted(files.good)
    for number in range(N_FILES):
        kind = draw.choice(kinds)
        is_good = draw.random() < 0.1  # in place of another kind
        file = files.good[draw.choice(kinds)] if is_good else files.bad(kind)
        out = str(files.folder / f"out{number}")
        arguments = {
            "snapshot": draw.choice(
                (["replay", str(file)], ["replay", str(file), "--plot", f"{out}.html"], ["plan", str(file), "--pool"])
            ),
            "trace": draw.choice(
                (["replay", str(file), "--what-if", "common"], ["plan", str(file)], ["replay", str(file), "--plot", "-"])
            ),
            "runs": draw.choice((["evaluate", str(file)], ["train", str(file), "--out", out], ["import", "runs", str(file)])),
            "artifact": ["calibrate", str(files.good["runs"]), "--artifact", str(file), "--out", out],
        }.get(kind) or ["import", kind, str(file), *(["--out", f"{out}.jsonl"] if draw.random() < 0.5 else [])]
        yield _case("random files", [*arguments, *(["--json"] if draw.random() < 0.7 else [])])


# ------------------------------------------------------------------------------------------------ values, environments
def _on_files(verb: str, files: _Files, number: int) -> list[str]:
    """Return a well-formed command with this verb that traces nothing."""
    good, out = files.good, str(files.folder / f"value{number}")
    return {
        "replay": ["replay", str(good["trace"])],
        "plan": ["plan", str(good["trace"]), "--pool"],
        "measure": ["measure", "--list", "--count", "2"],
        "import": ["import", "csv", str(good["csv"])],
        "train": ["train", str(good["runs"]), "--out", out],
        "calibrate": ["calibrate", str(good["runs"]), "--artifact", str(good["artifact"]), "--out", out],
        "evaluate": ["evaluate", str(good["runs"])],
    }[verb]


def _values(files: _Files, draw: random.Random) -> Iterable[Case]:
    """Yield commands that trace nothing, with random values."""
    for number in range(N_VALUES):
        verb = draw.choice(sorted(_OPTIONS))
        is_json = ["--json"] if verb != "measure" and draw.random() < 0.7 else []
        yield _case("random values", [*_on_files(verb, files, number), *_drawn(_OPTIONS[verb], draw, 2), *is_json])


def _environments(files: _Files, draw: random.Random) -> Iterable[Case]:
    """Yield well-formed commands in random environments."""
    for number in range(N_ENVIRONMENTS + N_STARTS):
        names = draw.sample(sorted(_VARIABLES), draw.randint(1, 4))
        environment = {name: draw.choice(_VARIABLES[name]) for name in names}
        arguments = [*_on_files(draw.choice(("replay", "plan", "import", "calibrate", "evaluate")), files, number), "--json"]
        if number < N_ENVIRONMENTS:
            yield _case("random environments", arguments, environment=environment)
        else:
            environment |= {name: draw.choice(_STARTS[name]) for name in draw.sample(sorted(_STARTS), 3)}
            run = functools.partial(vramcast, arguments, codes=_CODES, environment=environment)
            yield Case("random environments", f"a new interpreter: {_shown(arguments, environment)}", run)


# ------------------------------------------------------------------------------------------------ jobs
def _jobs(folder: Path, draw: random.Random) -> Iterable[Case]:
    """Yield jobs with random values, mixed with well-formed ones, whose numbers must be the same as alone."""
    calm: dict[tuple[str, str], Any] = {}

    def alone(job: tuple[str, str]) -> Any:
        if job not in calm:
            command = [sys.executable, "-m", "vramcast", "estimate", f"{folder}/m.py:{job[0]}", "--batch", job[1], "--json"]
            calm[job] = json.loads(subprocess.run(command, check=True, cwd=ROOT, capture_output=True).stdout)["peaks"]
        return calm[job]

    def as_alone(code: int, out: str, err: str, *, job: tuple[str, str], is_same: bool) -> Verdict:
        verdict = judged(code, out, err, is_json=True)
        if not is_same or verdict is not HANDLED:
            return verdict
        if code != 0:
            return Verdict(Wrong.EXIT_CODE, f"exit {code} for a job that runs: {err[-200:]}")
        found, right = json.loads(out)["peaks"], alone(job)
        return HANDLED if found == right else Verdict(Wrong.NUMBER, f"{found}, and alone {right}")

    for _ in range(N_JOBS):
        job = draw.choice(_JOBS)
        verb = draw.choice(("estimate", "check", "sweep"))
        is_same = draw.random() < 0.25
        if is_same:
            given = [
                *draw.choice(
                    (
                        [],
                        ["--level", "0.5"],
                        ["--memory", "100GiB"],
                        ["--lr", "0"],
                        ["--timeout", "100"],
                        ["--what-if", "common"],
                    )
                )
            ]
            verb = draw.choice(("estimate", "check"))
        else:
            given = _drawn(_JOB_OPTIONS, draw, 2)
        target = "raises" if not is_same and draw.random() < 0.1 else job[0]
        more = ["--batch-sizes", draw.choice(("2,4", "1..2", "0", "4..2", "1,", ""))] if verb == "sweep" else []
        card = ["--on", "h200"] if is_same and verb == "check" else []  # without a card, check has no answer
        arguments = [verb, f"{folder}/m.py:{target}", "--batch", job[1], *card, *more, *given, "--json"]
        verdict = functools.partial(as_alone, job=job, is_same=is_same)
        yield Case("random jobs", _shown([verb, target, *arguments[2:]]), functools.partial(inside.here, arguments, verdict))
