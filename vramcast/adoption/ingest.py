"""History files become runs of the store: each once, of equal ids the one which was read last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.core.errors import DatasetError
from vramcast.core.files import sha256_of
from vramcast.datasets.histories import format_detection, job_rules
from vramcast.datasets.histories.formats import find
from vramcast.datasets.journal import Reading, Rejected, counted_reasons, read_runs
from vramcast.datasets.run import Run, with_config, with_source
from vramcast.datasets.tables import read_set


@dataclass(slots=True)
class Intake:
    """What the files gave.

    Attributes:
        runs: By id, in the order in which they were first seen.
        rejected: Rows which cannot be read, of the files which were read now.
        accounts: Of each file: `format`, `runs`, `rejected_by_reason`, `notes`, and `content`, what names its bytes.
    """

    runs: dict[str, Run] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    accounts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def rejected_by_reason(self) -> dict[str, int]:
        """How many rows of all files were kept aside why, the most frequent reason first."""
        found: Counter[str] = Counter()
        for account in self.accounts.values():
            found.update(account["rejected_by_reason"])
        return dict(found.most_common())

    @property
    def notes(self) -> list[str]:
        """What a reader of the numbers should know: each file's account."""
        return list(dict.fromkeys(note for account in self.accounts.values() for note in account["notes"]))


def contents(files: Sequence[str], format_name: str | None, rules: str | None) -> dict[str, str]:
    """Return what names the content of each history, and how it is read; "" where that is not one file."""
    how = f"{format_name} {sha256_of(rules) if rules else ''}"
    return {file: f"{digest} {how}" if (digest := sha256_of(file)) else "" for file in files}


def read_files(
    files: Sequence[str],
    format_name: str | None = None,
    rules: str | None = None,
    *,
    seen: Mapping[str, str],
    known: Mapping[str, dict[str, Any]],
    progress: Callable[[str], None] = lambda line: None,
) -> Intake:
    """Return the runs of all files.

    Args:
        files: Histories of any format which `vramcast import` knows, and sets of runs.
        format_name: Of all of them; None: what their beginning tells.
        rules: A file of `--join`.
        seen: `contents` of the files.
        known: Accounts of files whose runs are in the store, by content; they are not read again.
        progress: Hears of each file.
    Raises:
        DatasetError, TraceFileError: a file cannot be read, or none of its rows.
        UsageError: a file does not tell its format.
    """
    matching = job_rules.read_rules(rules) if rules else []
    found = Intake()
    for file in files:
        if seen[file] in known:
            found.accounts[file] = known[seen[file]]
            progress(f"{file}: read before")
            continue
        name = format_name or format_detection.format_of(file)
        reading = _read(file, name)
        if not reading.runs and reading.rejected:
            first = reading.rejected[0]
            raise DatasetError(
                f"None of {len(reading.rejected)} rows of '{file}' can be read as {name}: {first.where}: {first.reason} "
                "Is it another format?"
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
            "notes": reading.notes,
        }
        progress(f"{file}: {name}, {len(runs):,} runs, {len(reading.rejected):,} rows kept aside")
    return found


def _read(file: str, name: str) -> Reading:
    is_set = Path(file).is_dir() or Path(file).suffix == ".parquet"
    return read_set(file) if is_set and name == format_detection.SET else find(name).read(file)


def _settled(run: Run, file: Path) -> Run:
    """Return a run which says where it is from, and whose config is in it, so that it is the same in the store."""
    run = run if run.passport.source else with_source(run, file.name)
    return with_config(run, file if file.is_dir() else file.parent)


def stored(path: Path) -> dict[str, Run]:
    """Return the runs of the store, in the order in which they were first seen.

    Raises:
        DatasetError: it cannot be read.
    """
    return {run.id: run for run in read_runs(path).runs} if path.exists() else {}


def merged(store: Mapping[str, Run], fresh: Mapping[str, Run]) -> tuple[dict[str, Run], list[Run]]:
    """Return the store with what is new, and what is to be appended: runs of unknown ids, and those which changed."""
    changed = [run for run in fresh.values() if run.id not in store or not _same(store[run.id], run)]
    return {**store, **{run.id: run for run in changed}}, changed


def _same(one: Run, other: Run) -> bool:
    """Tell whether two runs of one id say the same, whichever file they were read from."""
    return with_source(one, "") == with_source(other, "")
