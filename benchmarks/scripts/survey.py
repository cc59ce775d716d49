"""Survey of public training scripts as people start them, each with `vramcast run`: answers and failures.

    python -m benchmarks.scripts.survey --sources FOLDER [--data FOLDER] [--only TEXT] [--timeout SECONDS] [--fresh]

FOLDER has the repositories as `git archive` exports them, one folder per name (`nanoGPT`, `examples`, `trl`). Data and
checkpoints are stubs made during the run (`benchmarks/scripts/data.py`). Answers are stored in build/scripts/answers.jsonl, so
a stopped run can be resumed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from benchmarks.accuracy.runner import ROOT
from benchmarks.scripts.data import made
from benchmarks.scripts.entry import Entry
from benchmarks.scripts.table import ENTRIES
from benchmarks.tables import table
from vramcast.core.units import gib

BUILD: Final = ROOT / "build" / "scripts"
_ANSWERS: Final = (0, 1, 4)  # spec: the exit codes of verdicts
_TARGET: Final = 0.95  # spec: the aim


class Verdict(StrEnum):
    """The result of a run."""

    ANSWERED = "answered"
    PARTLY = "ended early"
    FAILED = "failed"
    OWN = "as expected"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run's verdict; peaks in bytes, None without any; `growth`: kept with each step; `said`: fits or not."""

    name: str
    verdict: str
    exit: int | None = None
    seconds: float = 0.0
    process: int | None = None
    reserved: int | None = None
    allocated: int | None = None
    message: str = ""
    growth: int = 0
    said: str = ""


def missing(entry: Entry, sources: Path) -> str:
    """Return the missing sources or packages of a run; empty if nothing is missing."""
    if entry.repository and not (sources / entry.repository.rpartition("/")[2]).is_dir():
        return f"no sources of {entry.repository}"
    absent = [name for name in entry.packages if importlib.util.find_spec(name) is None]
    return f"needs {', '.join(absent)}" if absent else ""


def words_of(entry: Entry, data: Path, out: Path) -> list[str]:
    """Return the words of the command; make the stub data that it names."""
    return shlex.split(_filled(entry.command, data, out))


def _filled(text: str, data: Path, out: Path) -> str:
    """Return a text with the folders filled in."""
    text = re.sub(r"\{data:([\w-]+)\}", lambda found: str(made(found[1], data).resolve()), text)
    return text.replace("{out}", str(out))


def verdict_of(entry: Entry, code: int | None, text: str, ended: str = "") -> Verdict:
    """Return the verdict of a run, from its exit code (None: no peaks), its output, and the reason of an early end."""
    if entry.own and entry.own in f"{ended} {text}":
        return Verdict.OWN
    if code in _ANSWERS:
        return Verdict.PARTLY if ended else Verdict.ANSWERED
    return Verdict.FAILED


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run's words, its folder, the variables of its shell, and the folder for what it writes."""

    words: list[str]
    folder: Path
    environment: dict[str, str]
    out: Path


def prepared(entry: Entry, sources: Path, data: Path) -> Prepared | str:
    """Return what a run needs, with its stub data made; or what is missing, in words."""
    if absent := missing(entry, sources):
        return absent
    home = (sources / entry.repository.rpartition("/")[2]).resolve()
    out = BUILD / "out" / re.sub(r"\W+", "-", entry.name)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    folder = home / entry.folder if entry.repository else out
    try:
        words = words_of(entry, data, out)
        for name, place in entry.linked:
            _link(made(name, data), folder / place)
    except ImportError as error:
        return f"its stub data need {error.name}"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    for assigned in entry.environment:
        name, _, value = _filled(assigned, data, out).partition("=")
        if name == "PYTHONPATH":
            value = os.pathsep.join(filter(None, [str(home / value), environment.get(name, "")]))
        environment[name] = value
    return Prepared(words, folder, environment, out)


def run(entry: Entry, sources: Path, data: Path, timeout_s: float) -> Outcome:
    """Return the result of a run."""
    made_ready = prepared(entry, sources, data)
    if isinstance(made_ready, str):
        return Outcome(entry.name, Verdict.LEFT_OUT, message=made_ready)
    out = made_ready.out
    command = [sys.executable, "-m", "vramcast", "run", "--json", "--device", entry.device, "--timeout", str(timeout_s)]
    started = time.perf_counter()
    done = subprocess.run(
        [*command, *entry.options, "--", *made_ready.words],
        cwd=made_ready.folder,
        env=made_ready.environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - started
    (out / "stderr.txt").write_text(done.stderr, encoding="utf-8")
    (out / "answer.json").write_text(done.stdout, encoding="utf-8")
    said = (done.stderr.strip().splitlines() or [""])[-1][:500]
    try:
        found = json.loads(done.stdout)
        peaks = found.get("peaks") or {}
    except ValueError:
        found, peaks = {}, {}
    ended = found.get("ended") or ""
    verdict = verdict_of(entry, done.returncode if peaks else None, done.stderr, ended)
    return Outcome(
        entry.name, verdict, done.returncode, seconds, peaks.get("process"), peaks.get("reserved"), peaks.get("allocated"),
        ended or ("" if verdict is Verdict.ANSWERED else said), (found.get("growth") or {}).get("bytes_per_step", 0),
        str((found.get("verdict") or {}).get("value", "")),
    )  # fmt: skip


def _link(target: Path, place: Path) -> None:
    """Link `place`, in the sources, to the stub data."""
    if place.is_dir() and not place.is_symlink():
        for path in target.iterdir():
            _link(path, place / path.name)
    elif not place.exists():
        place.unlink(missing_ok=True)  # a link to stub data in another place
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target.resolve())


def share(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Return the numbers of answered and of possible runs; a run that ended early has numbers but is not an answer."""
    counted = Counter(outcome.verdict for outcome in outcomes)
    return counted[Verdict.ANSWERED], counted[Verdict.ANSWERED] + counted[Verdict.PARTLY] + counted[Verdict.FAILED]


def report(outcomes: Sequence[Outcome]) -> str:
    """Return the table as Markdown, with the share of answers."""
    notes = {entry.name: entry.note for entry in ENTRIES}
    rows = []
    for one in outcomes:
        sizes = [gib(size) if size is not None else "-" for size in (one.process, one.reserved, one.allocated)]
        rows.append(
            [
                one.name,
                one.exit if one.exit is not None else "-",
                f"{one.seconds:.0f}",
                *sizes,
                one.verdict,
                one.said or "-",
                one.growth or "-",
                one.message[:90] or notes.get(one.name, ""),
            ]
        )
    columns = ["run", "exit", "s", "process", "reserved", "allocated", "verdict", "said", "growth", ""]
    answered, possible = share(outcomes)
    said = f"{answered} of {possible} answer ({100 * answered / max(possible, 1):.0f} %; the aim is {100 * _TARGET:.0f} %)"
    growing = sum(outcome.growth > 0 for outcome in outcomes)
    return "\n".join([table(columns, rows), "", said, f"{growing} alarms of growth"])


def main() -> None:
    """Run what has no stored answer, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sources", type=Path, required=True, metavar="FOLDER", help="the repositories")
    parser.add_argument("--data", type=Path, default=BUILD / "data", metavar="FOLDER", help="where stub data are written")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose name or repository contains TEXT")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="limit of one run (default: 300)")
    parser.add_argument("--fresh", action="store_true", help="run all again")
    options = parser.parse_args()
    kept: dict[str, Outcome] = {}
    path = BUILD / "answers.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not options.fresh:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        kept = {record["name"]: Outcome(**record) for record in records if record["verdict"] == Verdict.ANSWERED}
    entries = [entry for entry in ENTRIES if options.only in f"{entry.name} {entry.repository}"]
    for entry in entries:
        if entry.name in kept:
            continue
        outcome = kept[entry.name] = run(entry, options.sources, options.data, options.timeout)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        print(f"{entry.name}: {outcome.verdict} {outcome.seconds:.0f} s {outcome.message}", file=sys.stderr, flush=True)
    print(report([kept[entry.name] for entry in entries]))


if __name__ == "__main__":
    main()
