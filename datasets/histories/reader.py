"""Common parts of all readers of histories: untrusted lines and tables of a file, and the account of its rows.

rows in the file = rows that became runs + rows rejected + rows skipped for a reason that a note gives
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from vramcast.core.errors import DatasetError
from vramcast.core.text import encodable
from vramcast.core.units import GIB, KIB, MIB
from vramcast.datasets.journal import JournalContent, RejectedRow
from vramcast.datasets.run import Run

T = TypeVar("T")
CENSORED_SHARE: Final = 0.94  # measured: above it, caches are full and cuDNN takes smaller plans (GPUMemNet, 40 GB card)
_MAX_LINE: Final = 1_000_000  # arbitrary: characters; the longest row of a known table has 4,000
_MAX_TEXT_BYTES: Final = 2**30  # arbitrary: for a file that is read as a whole
_SHOWN: Final = 200  # arbitrary: characters of a rejected row
_REASON: Final = 300  # arbitrary: characters


class Tally:
    """A collector of the content of one file, which accounts for each of its rows.

    Attributes:
        path: The file.
        rows: Number of rows so far.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rows = 0
        self._used = 0
        self._ids: set[str] = set()
        self._skipped: Counter[str] = Counter()
        self._reading = JournalContent()

    def where(self, place: object) -> str:
        """Return the text for a place in this file."""
        return f"{self.path.name}:{place}"

    def skip(self, reason: str, count: int = 1) -> None:
        """Count rows that are valid but have nothing about GPU memory."""
        self._skipped[reason] += count

    def reject(self, place: object, reason: str | Exception, text: object = "", kind: str = "") -> None:
        """Reject one row; `kind` is the reason without the row's values, which our own errors have."""
        try:
            shown = encodable(str(text)[:_SHOWN]).strip()
        except RecursionError:  # JSON that could just be parsed may be too deep to be written
            shown = ""
        kind = kind or getattr(reason, "kind", "") or str(reason)
        self._reading.rejected.append(
            RejectedRow(self.where(place), encodable(str(reason))[:_REASON], shown, encodable(kind)[:_REASON])
        )

    def note(self, text: str) -> None:
        """Add a remark that a reader of the numbers needs, once."""
        if text not in self._reading.notes:
            self._reading.notes.append(encodable(text))

    @contextmanager
    def guarded(self, place: object, text: object = "") -> Iterator[None]:
        """Reject a row if the block raises for it."""
        try:
            yield
        except (ValueError, OverflowError) as error:  # our own errors are ValueErrors too
            self.reject(place, error, text)

    def run(self, rows: Sequence[tuple[object, object]], make: Callable[..., Run], *arguments: Any, more: bool = False) -> None:
        """Add the run that `make` returns, or reject its rows if `make` or the schema raises.

        Args:
            rows: (place, text) of the rows that the run was made from.
            make: Builds it.
            arguments: Arguments of `make`.
            more: These rows are counted already, because they give more than one run.
        """
        try:
            made = make(*arguments)
            made = Run.from_dict(made.to_dict())  # a run that cannot be written and read back is rejected
            if made.id in self._ids:
                raise DatasetError(
                    f"The run {made.id[:80]} is in this file already, but ids must be unique.",
                    kind="the run's id is in this file already",
                )
        except (ValueError, OverflowError) as error:  # our own errors are ValueErrors too
            if more:
                self.note(f"a further run is left out: {str(error)[:_REASON]}")
                return
            for place, text in rows:
                self.reject(place, error, text)
            return
        self._ids.add(made.id)
        self._reading.runs.append(made)
        self._used += 0 if more else len(rows)

    def done(self) -> JournalContent:
        """Return the reading; its first note is the account."""
        skipped = "".join(f"; {n} {reason}" for reason, n in sorted(self._skipped.items()))
        account = (
            f"{self.path.name}: {self.rows} rows = {self._used} in {len(self._reading.runs)} runs + "
            f"{len(self._reading.rejected)} rejected + {sum(self._skipped.values())} skipped{skipped}"
        )
        self._reading.notes.insert(0, encodable(account))
        return self._reading


# Files --------------------------------------------------------------------------------------------------------------


def lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of the lines of a file, also gzipped; bytes that are not UTF-8 become question marks.

    Raises:
        DatasetError: The file cannot be read, or has a line longer than any table's.
    """
    number = 0
    try:
        with opened(path) as file:
            while raw := file.readline(_MAX_LINE + 1):
                number += 1
                if len(raw) > _MAX_LINE:
                    raise DatasetError(
                        f"'{path}' has more than {_MAX_LINE:,} bytes in line {number} and cannot be a table "
                        "of jobs: check the path."
                    )
                yield number, raw.decode(errors="replace").lstrip("\ufeff").rstrip("\r\n").replace("\0", "\ufffd")
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"'{path}' cannot be read ({_cause(error)}): check the path.") from None
    except Exception as error:  # zlib.error is not an OSError
        raise DatasetError(f"'{path}' cannot be unpacked ({_cause(error)}): download it again.") from None


def whole_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file, also gzipped.

    Raises:
        DatasetError: The file cannot be read, or is too large.
    """
    return whole_bytes(path).decode(errors="replace").lstrip("\ufeff")


def whole_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file, also gzipped.

    Raises:
        DatasetError: The file cannot be read, or is too large.
    """
    try:
        with opened(path) as file:
            data = file.read(_MAX_TEXT_BYTES + 1)
    except Exception as error:  # gzip and zlib raise several types for a damaged file
        raise DatasetError(f"'{path}' cannot be read ({_cause(error)}): check the path.") from None
    if len(data) > _MAX_TEXT_BYTES:
        raise DatasetError(f"'{path}' has more than {_MAX_TEXT_BYTES // GIB} GiB: split it.")
    return data


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacked if it is gzipped."""
    with open(path, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"  # spec: RFC 1952, 2.3.1
        file.seek(0)
        if not is_gzip:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked  # type: ignore[misc]


def _cause(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__


def csv_rows(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of its first line, cells) of each row; no cells if the quotes are damaged; blank lines are left out.

    Quotes do not span lines, so that one stray quote costs one row.
    """
    for number, text in numbered:
        if not text.strip():
            continue
        try:
            yield number, next(csv.reader([text], strict=False))
        except (csv.Error, StopIteration):
            yield number, []


def table(path: str | os.PathLike[str], needed: Sequence[str], tally: Tally) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, cells by column) of a CSV with a header; rows of another length are rejected in `tally`.

    Args:
        path: The file.
        needed: Required columns.
        tally: Counts the rows.
    Raises:
        DatasetError: There is no header with these columns.
    """
    rows = csv_rows(lines(path))
    _, header = next(rows, (0, []))
    names = [name.strip() for name in header]
    if missing := [name for name in needed if name not in names]:
        raise DatasetError(f"'{path}' has no column '{missing[0]}': give a CSV with a header.")
    yield from by_column(rows, names, tally)


def by_column(
    rows: Iterable[tuple[int, list[str]]], columns: Sequence[T], tally: Tally, who: str = "the header"
) -> Iterator[tuple[int, dict[T, str]]]:
    """Yield (line, cells by column) of rows; those of another length are rejected in `tally`, which counts all.

    Args:
        rows: Rows from `csv_rows`, without a header.
        columns: Names of the cells.
        tally: Counts the rows.
        who: Source of the number of columns, for the message.
    """
    for number, cells in rows:
        tally.rows += 1
        if len(cells) != len(columns):
            kind = f"the row has more or fewer cells than {who}"
            tally.reject(number, f"{len(cells)} cells, {who} has {len(columns)}", ",".join(cells), kind)
        else:
            yield number, dict(zip(columns, cells, strict=True))


# Values -------------------------------------------------------------------------------------------------------------

_BINARY: Final = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB, "P": 1024**2 * GIB}
_MISSING: Final = (
    "",
    "-",
    "n/a",
    "[n/a]",
    "na",
    "nan",
    "none",
    "null",
    "unknown",
    "invalid",
    "[not supported]",
    "[unknown error]",
)


def is_missing(text: str) -> bool:
    """Return whether a cell is empty or means unknown."""
    return text.strip().lower() in _MISSING


def number(text: str, what: str) -> float | None:
    """Return a cell as a number, None if it is empty.

    Raises:
        DatasetError: It is not a number.
    """
    if is_missing(text):
        return None
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan  # Python's own forms do not occur in CSV
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DatasetError(f"{what} is {text[:40]!r}, but must be a number.", kind=f"{what} is not a number")
    return value


def whole(text: str, what: str) -> int | None:
    """Return a cell as a whole number, None if it is empty.

    Raises:
        DatasetError: It is not a whole number.
    """
    value = number(text, what)
    if value is not None and value != int(value):
        raise DatasetError(f"{what} is {text[:40]!r}, but must be a whole number.", kind=f"{what} is not a whole number")
    return None if value is None else int(text) if re.fullmatch(r"[+-]?\d{1,30}", text.strip()) else int(value)


def size_bytes(text: str, what: str, unit_bytes: int = 1) -> int | None:
    """Return a cell as bytes, None if it is empty or 0: no job takes 0 bytes of a card, so 0 was not measured.

    Args:
        text: A number, perhaps with K, M, G, T (binary, as in Slurm) or a unit (`1234 MiB`).
        what: Name of the value, for the message.
        unit_bytes: Unit of a number without one.
    Raises:
        DatasetError: It is not a size, or negative.
    """
    if is_missing(text):
        return None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?)\s*([KMGTP]?)(i?B)?\s*", text)
    if match is None or len(match[1]) > 40:
        raise DatasetError(f"{what} is {text[:40]!r}, but must be a size.", kind=f"{what} is not a size")
    unit = _BINARY[match[2]] if match[2] or match[3] else unit_bytes
    value = float(match[1]) * unit
    if not math.isfinite(value):
        raise DatasetError(
            f"{what} is {text[:40]!r}, which exceeds the memory of any card.", kind=f"{what} exceeds the memory of any card"
        )
    return (int(match[1]) * unit if match[1].isdigit() else round(value)) or None


def duration_s(text: str, what: str) -> float | None:
    """Return a duration in seconds, `[days-]hours:minutes:seconds` or a number of seconds; None if it is empty.

    Raises:
        DatasetError: It is neither.
    """
    match = re.fullmatch(r"(?:(\d{1,6})(?:-| days?,? ))?(?:(\d{1,6}):)?(\d{1,4}):(\d{1,2}(?:\.\d+)?)", text.strip())
    if match is None:
        return number(text, what)
    return int(match[1] or 0) * 86400.0 + int(match[2] or 0) * 3600 + int(match[3]) * 60 + float(match[4])


def near_capacity(peak_bytes: int | None, total_bytes: int | None) -> bool:
    """Return whether a peak is so near to the card's size that it is only a lower bound."""
    return peak_bytes is not None and total_bytes is not None and peak_bytes >= CENSORED_SHARE * total_bytes
