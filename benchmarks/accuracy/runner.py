"""Runner of the accuracy benchmarks: runs cases on the null GPU and stores every answer, so that a stopped run can be resumed.

A case is a `Job` with the measurement of a real GPU. A variant sets the rest of a run: with or without cuDNN's own workspace
sizes, and the packages that the worker finds first. Each variant has its own worker, because a worker keeps the packages
that it imported once.

Answers are stored in build/accuracy/cache.jsonl by everything that decides them except this project's own code: `--fresh`
runs all jobs again.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from unittest import mock

from vramcast.core.brief import every_field
from vramcast.core.errors import VramcastError
from vramcast.estimates.runs.on_card import observed_on_card
from vramcast.jobs.job import Job
from vramcast.learner.workspaces import settled_reserved
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "accuracy"
TIMEOUT_S = 300.0  # arbitrary: the slowest job here takes half a minute


def data_folder() -> Path:
    """Return the folder of the public data sets: $VRAMCAST_SHARED, or ../shared/data next to the checkout."""
    named = os.environ.get("VRAMCAST_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    return folder / "data" if (folder / "data").is_dir() else folder


def has_rows(*names: str) -> bool:
    """Return whether all of these data sets are here."""
    return all((data_folder() / name).exists() for name in names)


def read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of one data set; exit with a hint if the file is missing."""
    path = data_folder() / name
    if not path.exists():
        sys.exit(f"'{path}' does not exist: set VRAMCAST_SHARED to the folder that holds {name}.")
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings of a run: without `oracle`, every cuDNN workspace is 0; `packages` comes first on the import path."""

    name: str = "default"
    oracle: bool = True
    packages: Path | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A measured run: its job and the facts that group tables."""

    name: str
    job: Job
    measured_bytes: int
    facts: dict[str, str] = field(default_factory=dict)
    options: RunOptions = AS_USUAL


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the null GPU: status ok, oom, or failed; peaks in bytes, 0 without any.

    `settled` is the reserved peak from the second step on, without the first step's searches for plans (cudnn.benchmark).
    """

    status: str
    reserved: int = 0
    settled: int = 0
    allocated: int = 0
    retries: int = 0
    cudnn_calls: int = 0
    seconds: float = 0.0
    message: str = ""


def _key(case: Case, variant: Variant) -> str:
    """Return the key of an answer: the job and its tracing options, the variant, and the versions that decide it."""
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "torchvision", "transformers", "timm")]
    packages = variant.packages.name if variant.packages else ""
    parts = [every_field((case.job, case.options)).replace(str(ROOT), "."), str(variant.oracle), packages, *versions]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Cache:
    """Answers in a text file, one JSON object per line; the last line of a key counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answers: dict[str, Answer] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                record = json.loads(line)
                key = record.pop("key")
                self._answers[key] = Answer(**record)

    def get(self, key: str) -> Answer | None:
        """Return the answer stored under `key`."""
        return self._answers.get(key)

    def put(self, key: str, answer: Answer) -> None:
        """Store `answer` on disk at once."""
        self._answers[key] = answer
        self._path.parent.mkdir(parents=True, exist_ok=True)
        record = {"key": key, **{name: getattr(answer, name) for name in Answer.__slots__}}
        with open(self._path, "a") as file:
            file.write(json.dumps(record) + "\n")


def python_path(packages: Path | None) -> str:
    """Return the PYTHONPATH of a worker that finds `packages` first."""
    return os.pathsep.join(filter(None, [str(packages or ""), os.environ.get("PYTHONPATH", "")]))


@contextmanager
def _tracer(variant: Variant) -> Iterator[NullGpuTracer]:
    """Yield a worker for `variant`."""
    path = python_path(variant.packages)
    with mock.patch.dict(os.environ, {"PYTHONPATH": path}):
        tracer = NullGpuTracer(ask_cudnn=variant.oracle)
    try:
        yield tracer
    finally:
        tracer.close()


def _ask(tracer: NullGpuTracer, case: Case) -> Answer:
    started = time.perf_counter()
    try:
        found = observed_on_card(tracer, case.job, case.options, timeout_s=TIMEOUT_S)
    except VramcastError as error:
        return Answer("failed", seconds=time.perf_counter() - started, message=f"{type(error).__name__}: {error}"[:500])
    calls = sum(entry.hits for entry in found.seen.ledger if entry.name.lower().startswith("cudnn"))
    retries, seconds = found.seen.trace.header["peaks"]["retries"], time.perf_counter() - started
    status, message = ("oom", found.out_of_memory[:500]) if found.out_of_memory else ("ok", "")
    return Answer(status, found.reserved, settled_reserved(found.trace), found.allocated, retries, calls, seconds, message)


def run_cases(cases: Sequence[Case], variant: Variant, *, fresh: bool = False) -> list[Answer]:
    """Return the answer to every case, in order; cached cases are not run again."""
    cache = Cache(BUILD / "cache.jsonl")
    keys = [_key(case, variant) for case in cases]
    missing = [i for i, key in enumerate(keys) if fresh or (kept := cache.get(key)) is None or kept.status == "failed"]
    if missing:
        tracer_of: NullGpuTracer | None = None
        for done, i in enumerate(missing):
            if not fresh and (kept := cache.get(keys[i])) is not None and kept.status != "failed":
                continue  # the same job as an earlier one of these
            if tracer_of is None:
                context = _tracer(variant)
                tracer_of = context.__enter__()
            answer = _ask(tracer_of, cases[i])
            cache.put(keys[i], answer)
            said = f"{answer.status} {answer.reserved >> 20} MiB of {cases[i].measured_bytes >> 20} {answer.message[:120]}"
            print(f"[{variant.name} {done + 1}/{len(missing)}] {cases[i].name}: {said}", file=sys.stderr, flush=True)
            if answer.message.startswith("WorkerError"):  # the worker may have ended with the job
                context.__exit__(None, None, None)
                tracer_of = None
        if tracer_of is not None:
            context.__exit__(None, None, None)
    answers = [cache.get(key) for key in keys]
    return [answer for answer in answers if answer is not None]


def write_csv(name: str, rows: Iterable[dict[str, object]]) -> Path:
    """Write `rows` to build/accuracy/NAME.csv and return the path."""
    rows = list(rows)
    path = BUILD / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def read_csv(name: str) -> list[dict[str, object]]:
    """Return the rows of build/accuracy/NAME.csv, numbers and truth values restored; end the program if the file is missing."""
    path = BUILD / f"{name}.csv"
    if not path.exists():
        sys.exit(f"'{path}' does not exist: run 'python -m benchmarks.accuracy.{name}' first.")
    with open(path, newline="", encoding="utf-8") as file:
        return [{column: _value(text) for column, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> object:
    """Return a cell as the number or truth value that it was written from, else as text."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def arguments(description: str | None, *, variants: str = "") -> argparse.Namespace:
    """Return the options that all scripts share; with a help text for it, also `--variants`."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--fresh", action="store_true", help="run every job again instead of using stored answers")
    parser.add_argument("--limit", type=int, help="run only the first LIMIT cases, for trials")
    if variants:
        parser.add_argument("--variants", action="store_true", help=variants)
    return parser.parse_args()
