"""modded-nanogpt's records, 8 ranks and compiled: the peaks at the end of their logs, and `vramcast run` of their scripts.

    python -m benchmarks.accuracy.logs.modded --repository REPOSITORY.git [--torches build/versions] [--only TEXT] [--limit N]
        [--data FOLDER] [--timeout S] [--kept]

A record's log holds its whole script, which takes no settings: only its number of steps is cut. Data are random tokens of
GPT-2's vocabulary in documents of many lengths. A script that imports FlashAttention 3, or downloads it from a hub, gets a
stand-in (stand_ins/). With --torches a record uses the torch of its log or the nearest available one. Answers are stored
in build/accuracy/modded.jsonl, so a stopped run can be resumed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.logs import logged_data
from benchmarks.accuracy.logs.logged import (
    Answer,
    answer_of,
    command_of,
    keep,
    kept_answers,
    python_of,
    release_of,
    with_stand_ins,
)
from benchmarks.accuracy.logs.logged_sources import Peaks, sha_of, source_at
from benchmarks.accuracy.runner import BUILD, read_rows
from benchmarks.tables import table
from vramcast.core.errors import UsageError
from vramcast.hardware.cards import device
from vramcast.hardware.stack import parse, same_minor

TABLE: Final = "public/modded_nanogpt.csv"
KEPT: Final = BUILD / "modded.jsonl"
_SCRIPT: Final = "train_gpt.py"
_STEPS: Final = 6  # arbitrary: in these, schedules of windows and batches pass through all their stages
_TIMEOUT_S: Final = 900.0  # arbitrary: two minutes on an idle machine
# The variables in which records hold their number of steps; those that extend a schedule have two.
_CUT: Final = re.compile(r"(?m)^(\s+num_(?:scheduled_|extension_)?iterations\s*(?::\s*int)?\s*=\s*)\d+")
# Other files of the record follow the script in the log, each below a heading.
_FILE: Final = re.compile(r"(?m)^-{40}\n# (\w+\.py)\n-{40}\n")
_LOGS: Final = re.compile(r"\blogs/([\w-]+)/")  # some scripts log there without making the folder
_NEEDS_STAND_IN: Final = re.compile(r"flash_attn_interface|get_kernel\(")
_NIGHTLY: Final = re.compile(r"\.dev(\d{8})")
_CUT_2_6: Final = 20241210  # spec: github.com/pytorch/pytorch/issues/142814: later nightlies belong to 2.7, whatever their name
# spec: the script's custom operator declares another layout for its gradient, and torch 2.8 began to compare them
_NO_COMPARISON: Final = {"TORCHINDUCTOR_SIZE_ASSERTS": "0"}


@dataclass(frozen=True, slots=True)
class Record:
    """A log: its row in the table, both peaks, and its script."""

    row: Mapping[str, str]
    peaks: Peaks
    source: str

    @property
    def key(self) -> str:
        """Return the script's digest and the log's path: several logs may share a script."""
        return f"{self.row['script']} {self.row['log_path']}"

    @property
    def name(self) -> str:
        """Short name of script and record."""
        return f"{self.row['script'][:8]} {Path(self.row['log_path']).parts[2]}"

    @property
    def torch(self) -> str:
        """Return the release with this torch's code: for a nightly, the next one."""
        torch = self.row["torch"]
        nightly = _NIGHTLY.search(torch)
        if nightly is not None and torch.startswith("2.6.0") and int(nightly[1]) > _CUT_2_6:
            return "2.7.0"
        return _NIGHTLY.sub("", torch)

    def left_out(self) -> str:
        """Return the reason why it cannot be run; "" if it can."""
        if not self.source:
            return "a log without its source"
        if not _CUT.search(self.source):
            return "a script whose steps are counted in another way"
        try:
            device(self.row["gpu"])
            parse(f"torch=={self.torch}")
        except UsageError as error:
            return str(error)
        return ""


def read_records(rows: Iterable[Mapping[str, str]], repository: Path) -> list[Record]:
    """Return the logs with both peaks, with the scripts from a clone of their repository; the first log of each script."""
    found: dict[tuple[str, ...], Record] = {}
    for row, peaks in logs_of(rows).values():
        source = source_at(repository, row["url"])
        script = sha_of(source.encode())
        found.setdefault((script, row["gpu"], row["world_size"]), Record({**row, "script": script}, peaks, source))
    return list(found.values())


def logs_of(rows: Iterable[Mapping[str, str]]) -> dict[str, tuple[Mapping[str, str], Peaks]]:
    """Return the logs with both peaks by path: a row of the table, and the peaks."""
    by_path: dict[str, dict[str, Mapping[str, str]]] = {}
    for row in rows:
        by_path.setdefault(row["log_path"], {})[row["metric"]] = row
    both = ("allocated", "reserved")
    return {
        path: (metrics["reserved"], Peaks(*(round(float(metrics[name]["value_mib"])) for name in both)))
        for path, metrics in by_path.items()
        if metrics.keys() >= set(both)
    }


def files_of(source: str) -> dict[str, str]:
    """Return a record's files by name: its script with few steps, and its imports."""
    script, *others = _FILE.split(source)
    return {_SCRIPT: _CUT.sub(rf"\g<1>{_STEPS}", script), **dict(zip(others[::2], others[1::2], strict=True))}


def ask(record: Record, data: Path, torches: Path | None, timeout_s: float) -> Answer:
    """Return the answer of `vramcast run` for a record, and the peaks that its script printed."""
    release = release_of(record.torch, torches)
    ranks = int(record.row["world_size"])
    command = command_of(record.torch, device(record.row["gpu"]), ranks, python_of(torches, release), timeout_s)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in files_of(record.source).items():
            (folder / path).write_text(text, encoding="utf-8")
        for place in ("", *_LOGS.findall(record.source)):
            (folder / "logs" / place).mkdir(parents=True, exist_ok=True)
        (folder / "data").mkdir()
        (folder / "data" / "fineweb10B").symlink_to(logged_data.documents(data).resolve())
        environment = {**os.environ, **_NO_COMPARISON}
        if _NEEDS_STAND_IN.search(record.source):
            environment["PYTHONPATH"] = with_stand_ins()
        return answer_of([*command, _SCRIPT], folder, environment, record.key, release)[0]


def report(records: Sequence[Record], kept: Mapping[tuple[str, str], Answer], torches: Path | None) -> str:
    """Return the tables as Markdown."""
    rows: list[list[object]] = []
    pairs: list[tuple[Peaks, Peaks]] = []
    for record in records:
        release = release_of(record.torch, torches)
        answer, logged = kept.get((record.key, release)), record.peaks
        here_torch = release or metadata.version("torch").partition("+")[0]
        cells: list[object] = [record.name, record.row["torch"], here_torch]
        if answer is None or answer.line is None:
            why = record.left_out() or ("not run" if answer is None else answer.message[:120])
            rows.append([*cells, f"{logged.allocated_mib:,} / {logged.reserved_mib:,}", "-", "-", "-", why])
            continue
        here = Peaks(*answer.line)
        pairs.append((here, logged))
        off = [_percent(here.allocated_mib, logged.allocated_mib), _percent(here.reserved_mib, logged.reserved_mib)]
        note = "" if same_minor(record.torch, here_torch) else "another torch"
        said = [f"{one.allocated_mib:,} / {one.reserved_mib:,}" for one in (logged, here)]
        rows.append([*cells, *said, *off, note])
    titles = ["record", "torch", "here", "logged, MiB", "here, MiB", "allocated", "reserved", "note"]
    sums = [
        ["allocated", *summarize((here.allocated_mib, logged.allocated_mib) for here, logged in pairs).cells()],
        ["reserved", *summarize((here.reserved_mib, logged.reserved_mib) for here, logged in pairs).cells()],
    ]
    return f"{table(titles, rows)}\n\n{table(['peak', *SUMMARY_COLUMNS], sums)}"


def _percent(a: float, b: float) -> str:
    return f"{100 * (a / b - 1):+.2f} %"


def main() -> None:
    """Run what has no stored answer, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repository", type=Path, required=True, metavar="GITDIR", help="a clone of modded-nanogpt")
    parser.add_argument("--data", type=Path, default=BUILD / "logged-data", metavar="FOLDER", help="where shards are written")
    parser.add_argument("--torches", type=Path, metavar="FOLDER", help="environments with other releases of torch, by version")
    parser.add_argument("--only", metavar="TEXT", help="only records whose script, card, or path contains TEXT")
    parser.add_argument("--ranks", metavar="N", help="only records with N ranks")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N in the order of scripts' digests")
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, metavar="S", help="limit of a run (default: %(default)s)")
    parser.add_argument("--kept", action="store_true", help="run nothing: print the table of the stored answers")
    options = parser.parse_args()
    records = sorted(read_records(read_rows(TABLE), options.repository), key=lambda record: record.row["script"])
    if options.only:
        records = [one for one in records if options.only in f"{one.key} {one.row['gpu']}"]
    if options.ranks:
        records = [one for one in records if one.row["world_size"] == options.ranks]
    records = [one for one in records if options.kept or not one.left_out()][: options.limit]
    kept = kept_answers(KEPT)
    for record in records:
        release = release_of(record.torch, options.torches)
        if options.kept or record.left_out() or (record.key, release) in kept:
            continue
        answer = ask(record, options.data, options.torches, options.timeout)
        kept[answer.key, answer.torch] = answer
        keep(answer, KEPT)
        said = f"{answer.line or answer.message[:200]} of {record.peaks}"
        print(f"{record.name} {answer.seconds:.0f} s: {said}", file=sys.stderr, flush=True)
    print(report(records, kept, options.torches))


if __name__ == "__main__":
    main()
