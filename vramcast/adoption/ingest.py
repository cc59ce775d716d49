"""Import of history files as runs of the store: each run once; of equal ids the last one counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vramcast.core.errors import DatasetError
from vramcast.core.files import sha256_of
from vramcast.datasets.histories import format_detection, job_rules
from vramcast.datasets.histories.formats import find
from vramcast.datasets.journal import JournalContent, RejectedRow, counted_reasons, read_runs, shown_reasons
from vramcast.datasets.run import Run, with_config, with_source
from vramcast.datasets.tables import read_set


@dataclass(slots=True)
class Intake:
    """The content of history files.

    Attributes:
        runs: Runs by id, in the order in which they were first seen.
        rejected: Rows that cannot be read, from the files read now.
        accounts: For each file: `format`, `runs`, `rejected_by_reason`, `notes`, and `content`, the digest of its bytes.
    """

    runs: dict[str, Run] = field(default_factory=dict)
    rejected: list[RejectedRow] = field(default_factory=list)
    accounts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def rejected_by_reason(self) -> dict[str, int]:
        """Return the number of rejected rows of all files by reason, the most frequent first."""
        found: Counter[str] = Counter()
        for account in self.accounts.values():
            found.update(account["rejected_by_reason"])
        return dict(found.most_common())

    @property
    def rejected_places(self) -> dict[str, str]:
        """Return the first places of the rejected rows by reason, file by file."""
        found: dict[str, list[str]] = {}
        for account in self.accounts.values():
            for reason, places in account.get("rejected_places", {}).items():
                found.setdefault(reason, []).append(places)
        return {reason: "; ".join(places) for reason, places in found.items()}

    @property
    def notes(self) -> list[str]:
        """Return remarks that a reader of the numbers needs, from each file's account."""
        return list(dict.fromkeys(note for account in self.accounts.values() for note in account["notes"]))


def contents(files: Sequence[str], format_name: str | None, rules: str | None, columns: Mapping[str, str]) -> dict[str, str]:
    """Return a digest of each history's content and of the way it is read; "" for a history that is not one file."""
    chosen = json.dumps(dict(columns)) if columns else ""
    how = f"{format_name} {sha256_of(rules) if rules else ''}{chosen}"
    return {file: f"{digest} {how}" if (digest := sha256_of(file)) else "" for file in files}


def read_files(
    files: Sequence[str],
    format_name: str | None = None,
    rules: str | None = None,
    columns: Mapping[str, str] = MappingProxyType({}),
    *,
    seen: Mapping[str, str],
    known: Mapping[str, dict[str, Any]],
    progress: Callable[[str], None] = lambda line: None,
) -> Intake:
    """Return the runs of all files.

    Args:
        files: Histories of any format that `vramcast import` supports, and sets of runs.
        format_name: Format of all of them; None: detected from their beginning.
        rules: A file of `--join`.
        columns: The choice of columns, for tables.
        seen: `contents` of the files.
        known: Accounts of files whose runs are in the store, by content; they are not read again.
        progress: Called with a line about each file.
    Raises:
        DatasetError, TraceFileError: A file cannot be read, or none of its rows.
        UsageError: The format of a file cannot be detected.
    """
    matching = job_rules.read_rules(rules) if rules else []
    found = Intake()
    for file in files:
        if seen[file] in known:
            found.accounts[file] = known[seen[file]]
            progress(f"{file}: read before")
            continue
        name = format_name or format_detection.format_of(file, columns)
        reading = _read(file, name, columns)
        if not reading.runs and reading.rejected:
            first = reading.rejected[0]
            raise DatasetError(
                f"None of {len(reading.rejected)} rows of '{file}' can be read as {name}: {first.where}: {first.reason} "
                f"See vramcast import {name} {file}, which lists all reasons."
            )
        runs = [_settled(run, Path(file)) for run in reading.runs]
        if matching:
            runs, _ = job_rules.join(runs, matching)
        found.runs.update({run.id: run for run in runs})
        found.rejected += reading.rejected
        found.accounts[file] = {
            "content": seen[file],
            "format": name,
            "runs": len(runs),
            "rejected_by_reason": dict(counted_reasons(reading.rejected)),
            "rejected_places": shown_reasons(reading.rejected),
            "notes": reading.notes,
        }
        progress(f"{file}: {name}, {len(runs):,} runs, {len(reading.rejected):,} rows rejected")
    return found


def _read(file: str, name: str, columns: Mapping[str, str]) -> JournalContent:
    if (Path(file).is_dir() or Path(file).suffix == ".parquet") and name == format_detection.SET:
        return read_set(file)
    form = find(name)
    return form.read(file, columns=columns) if columns and form.takes_columns else form.read(file)


def _settled(run: Run, file: Path) -> Run:
    """Return a run with its source and its config included, so that it is the same in the store."""
    run = run if run.passport.source else with_source(run, file.name)
    return with_config(run, file if file.is_dir() else file.parent)


def stored(path: Path) -> dict[str, Run]:
    """Return the runs of the store, in the order in which they were first seen.

    Raises:
        DatasetError: It cannot be read.
    """
    return {run.id: run for run in read_runs(path).runs} if path.exists() else {}


def merged(store: Mapping[str, Run], fresh: Mapping[str, Run]) -> tuple[dict[str, Run], list[Run]]:
    """Return the store with the new runs, and the runs to append: those with unknown ids, and those that changed."""
    changed = [run for run in fresh.values() if run.id not in store or not _same(store[run.id], run)]
    return {**store, **{run.id: run for run in changed}}, changed


def _same(one: Run, other: Run) -> bool:
    """Return whether two runs of one id are equal apart from the file that they were read from."""
    return with_source(one, "") == with_source(other, "")
