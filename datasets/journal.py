"""Append-only JSON lines, for data that is collected over time.

Each line is an object, passed to the kernel in one write and forced to disk. A process killed at any byte leaves at most
one torn line, at the end; the next writer terminates it, and readers reject and count it.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from vramcast.core.errors import DatasetError
from vramcast.core.text import encodable
from vramcast.datasets.run import Run


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that could not be read: its place (`FILE:LINE`), the reason, its beginning, and the reason without its values."""

    where: str
    reason: str
    text: str = ""
    kind: str = ""


@dataclass(slots=True)
class JournalContent:
    """The content of a file: runs, rejected rows, and remarks that a reader of the numbers needs."""

    runs: list[Run] = field(default_factory=list)
    rejected: list[RejectedRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


_SHOWN_CHARACTERS = 200  # arbitrary: enough to find the line again
_REASON_CHARACTERS = 200  # arbitrary
_PLACES = 3  # arbitrary: rows of each reason that are named


def rejected_places(rejected: Iterable[RejectedRow]) -> dict[str, list[str]]:
    """Return the places of rejected rows by kind of reason, the most frequent first."""
    places: dict[str, list[str]] = {}
    for one in rejected:
        places.setdefault((one.kind or one.reason)[:_REASON_CHARACTERS], []).append(one.where)
    return dict(sorted(places.items(), key=lambda item: -len(item[1])))


def counted_reasons(rejected: Iterable[RejectedRow]) -> Counter[str]:
    """Return the number of rejected rows by kind of reason."""
    return Counter({kind: len(places) for kind, places in rejected_places(rejected).items()})


def shown_reasons(rejected: Iterable[RejectedRow]) -> dict[str, str]:
    """Return the first places of each kind of reason: `jobs.csv:4, 9, 12, ...`."""
    return {kind: _first(places) for kind, places in rejected_places(rejected).items()}


def _first(places: list[str]) -> str:
    """Return the first places, with a file's name only where it differs from the one before."""
    shown, file = [], ""
    for place in places[:_PLACES]:
        name, _, line = place.rpartition(":")
        shown.append(line if name == file else place)
        file = name
    return ", ".join([*shown, *["..."][: len(places) > _PLACES]])


class Journal:
    """A file of JSON lines, open for appending by this process alone.

    Raises:
        DatasetError: Another process writes to it, or it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise DatasetError(f"'{path}' cannot be opened for appending ({error.strerror}): choose another --out.") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise DatasetError(f"'{path}' is being written by another process: wait for it, or choose another --out.") from None
        self._close_torn_line()

    def _close_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def append(self, values: dict[str, Any]) -> None:
        """Write one object; once this returns, it survives a kill and a power failure.

        Raises:
            DatasetError: The disk is full.
        """
        self.append_all([values])

    def append_all(self, many: Iterable[dict[str, Any]]) -> None:
        """Write objects and force them to disk together; after a kill, some are there, and only the last may be torn.

        Raises:
            DatasetError: The disk is full.
        """
        try:
            for values in many:
                line = json.dumps(values, separators=(",", ":"), allow_nan=False).encode() + b"\n"
                written = os.write(self._fd, line)
                while written < len(line):  # a signal or a nearly full disk
                    written += os.write(self._fd, line[written:])
            os.fsync(self._fd)
        except OSError as error:
            raise DatasetError(
                f"'{self.path}' cannot be written ({error.strerror}): earlier lines are intact. Free disk "
                "space or check the permissions."
            ) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
    """Yield (place, object or Rejected) of each line of a journal, also gzipped; blank lines are left out.

    Raises:
        DatasetError: The file cannot be read.
    """
    path = Path(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                where = f"{path.name}:{number}"
                if raw.strip():
                    yield where, _parsed(raw, where)
    except (OSError, EOFError) as error:
        raise DatasetError(f"'{path}' cannot be read ({error}): give a file of JSON lines.") from None


def _parsed(raw: bytes, where: str) -> Any:
    shown = raw[:_SHOWN_CHARACTERS].decode(errors="replace").strip()
    if not raw.endswith(b"\n"):
        return RejectedRow(where, "torn: the writer was stopped in this line", shown)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return RejectedRow(where, "not JSON: torn, or not from this file", shown)


def read_runs(path: str | os.PathLike[str]) -> JournalContent:
    """Return the runs of a journal; damaged lines are rejected, and of equal ids the last line counts.

    Raises:
        DatasetError: The file cannot be read at all.
    """
    found: dict[str, Run] = {}
    reading = JournalContent()
    for where, values in read_lines(path):
        if isinstance(values, RejectedRow):
            reading.rejected.append(values)
            continue
        try:
            run = Run.from_dict(values)
        except DatasetError as error:
            reading.rejected.append(RejectedRow(where, str(error), encodable(str(values)[:_SHOWN_CHARACTERS])))
        else:
            found[run.id] = run
    reading.runs = list(found.values())
    return reading
