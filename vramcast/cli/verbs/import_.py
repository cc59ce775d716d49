"""Read job histories into a data set.

    vramcast import sacct jobs.txt --out history.jsonl
    vramcast import series gpu-*.csv --out history.jsonl --join rules.json
    vramcast import csv jobs.csv --columns 'peak_mib=Max Mem,model=Net' --out history.jsonl
    vramcast import logged train.log --script train.py --out history.jsonl
    vramcast import runs measured/runs.jsonl --out measured/runs.parquet

The formats are below; docs/histories.md describes how each is read. New runs are appended to --out (.jsonl, or .parquet to
share a set); known ones are skipped. Rows that cannot be read go to STORE.rejected.jsonl with the reason. Without --out
nothing is written. Exit code 0: runs were read, or the files hold none; 2: none of the rows can be used.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vramcast.cli import column_questions
from vramcast.cli.streams import answer_as
from vramcast.cli.terminal import progress
from vramcast.core.errors import DatasetError, UsageError
from vramcast.datasets.histories import job_rules as joining
from vramcast.datasets.histories.column_names import parsed
from vramcast.datasets.histories.formats import FORMATS, Format, find
from vramcast.datasets.journal import Journal, JournalContent, RejectedRow, counted_reasons, shown_reasons
from vramcast.datasets.run import Run, with_source
from vramcast.datasets.tables import read_set, write_runs

_SHOWN_REASONS = 10  # arbitrary: lines; the file of rejected rows has all


def add_arguments(parser: argparse.ArgumentParser, known: Mapping[str, Format] = FORMATS) -> None:
    """Add this verb's options for the known formats."""
    summaries = "; ".join(f"{one.name}: {one.summary}" for one in known.values())
    parser.add_argument("format", metavar="FORMAT", help=summaries)
    parser.add_argument("files", metavar="FILE", nargs="+", help="file of the scheduler or the monitor")
    parser.add_argument("--out", metavar="STORE", help="the data set to append to: .jsonl or .parquet")
    parser.add_argument("--join", metavar="RULES.json", help="rules that map a job's script or name to a model")
    column_questions.add_option(parser)
    parser.add_argument(
        "--script", metavar="FILE", help="for logged: the script that wrote the logs, if they do not contain it"
    )


def main(options: argparse.Namespace, known: Mapping[str, Format] = FORMATS) -> int:
    """Run the verb for the known formats."""
    if options.out and not options.out.endswith((".jsonl", ".parquet")):
        raise UsageError(f"--out is '{options.out}', but must end in .jsonl or .parquet: rename it.")
    chosen = find(options.format, known)
    if options.script and not chosen.takes_script:
        raise UsageError(f"--script applies to logs of scripts, not to format '{options.format}': leave it out.")
    if options.columns and not chosen.takes_columns:
        raise UsageError(f"--columns applies to tables, not to format '{options.format}': leave it out, or use csv.")
    extra: dict[str, Any] = {"script": options.script} if options.script else {}
    columns = parsed(options.columns) if options.columns else {}
    rules = joining.read_rules(options.join) if options.join else []
    runs: list[Run] = []
    rejected: list[RejectedRow] = []
    notes: list[str] = []
    for file in options.files:
        if chosen.takes_columns:
            columns = extra["columns"] = columns or column_questions.answered(file)
        with progress(f"reading {file}"):
            reading: JournalContent = chosen.read(file, **extra)
        runs += [run if run.passport.source else with_source(run, Path(file).name) for run in reading.runs]
        rejected += reading.rejected
        notes += [note for note in reading.notes if note not in notes]
    if options.join:
        runs, matched = joining.join(runs, rules)
        notes.append(f"{matched} of {len(runs)} runs match a rule; the others serve only as a baseline")
    imported, there = _kept(options.out, runs, rejected)
    summary = {
        "schema": 1,
        "format": options.format,
        "files": len(options.files),
        "runs": len(runs),
        "imported": imported,
        "already_there": there,
        "rejected": len(rejected),
        "rejected_by_reason": dict(counted_reasons(rejected).most_common()),
        "rejected_places": shown_reasons(rejected),
        "statuses": dict(Counter(run.measurement.status for run in runs)),
        "censored": sum(run.measurement.censored for run in runs),
        "with_target": sum(run.workload.target is not None for run in runs),
        "out": options.out,
        "notes": notes,
    }
    if not runs and rejected:
        raise DatasetError(
            f"None of {len(rejected)} rows can be read as {options.format}: {rejected[0].where}: {rejected[0].reason}"
            f"{_others(rejected)} Check the format: vramcast import --help lists all."
        )
    answer_as(options.json, summary, lambda: _text(summary))
    return 0


def _others(rejected: list[RejectedRow]) -> str:
    """Return the other kinds of reasons, with counts and places."""
    reasons, places = counted_reasons(rejected), shown_reasons(rejected)
    del reasons[rejected[0].kind or rejected[0].reason]
    listed = [f"{n:,} x {kind} ({places[kind]})" for kind, n in reasons.most_common(_SHOWN_REASONS)]
    return f" Also {'; '.join(listed)}." if listed else ""


def _kept(out: str | None, runs: list[Run], rejected: list[RejectedRow]) -> tuple[int, int]:
    """Append new runs to the store; return the numbers of new and of known runs."""
    if out is None:
        return 0, 0
    before = read_set(out).runs if Path(out).exists() else []
    there = {run.id for run in before}
    fresh: dict[str, Run] = {}
    for run in runs:
        if run.id not in there:
            fresh.setdefault(run.id, run)
    if fresh and out.endswith(".parquet"):
        write_runs([*before, *fresh.values()], out)
    elif fresh:
        with Journal(out) as journal:
            journal.append_all(run.to_dict() for run in fresh.values())
    if rejected:
        with Journal(Path(out).with_suffix(".rejected.jsonl")) as aside:
            aside.append_all(asdict(one) for one in rejected)
    return len(fresh), len(runs) - len(fresh)


def _text(summary: dict[str, Any]) -> str:
    what = "imported" if summary["out"] else "read; nothing is written without --out"
    lines = [
        f"{summary['runs']:>10,} runs from {summary['files']} files of {summary['format']}",
        f"{summary['imported'] if summary['out'] else summary['runs']:>10,} {what}",
        f"{summary['already_there']:>10,} in {summary['out']} already" if summary["out"] else "",
        f"{summary['with_target']:>10,} can be run again, {summary['censored']:,} peaks are lower bounds",
        f"{summary['rejected']:>10,} rows rejected",
    ]
    lines += [
        f"{'':>11}{n:,} x {reason} ({summary['rejected_places'][reason]})"
        for reason, n in [*summary["rejected_by_reason"].items()][:_SHOWN_REASONS]
    ]
    return "\n".join([*filter(None, lines), *summary["notes"]])
