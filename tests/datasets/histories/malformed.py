"""Damaged files of any format, and the properties of every reader."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vramcast.core.errors import DatasetError, TraceFileError
from vramcast.datasets.histories.formats import Format
from vramcast.datasets.journal import JournalContent
from vramcast.datasets.run import Run

# Number of damaged files of each format; the release reads more.
EXAMPLES = [100, pytest.param(500, marks=pytest.mark.release)]
ACCOUNT = re.compile(r".*: (\d+) rows = (\d+) in (\d+) runs \+ (\d+) rejected \+ (\d+) skipped.*", re.DOTALL)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(["gres", "gpumem", "ok"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["jobs", "job_id", "steps", "tres", "nodes", "job", "status", "train info", "state", "id"])
            | st.text(max_size=6),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@st.composite
def _mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """Return a valid file with some places overwritten, removed, duplicated or moved."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        what = draw(st.sampled_from(["replace", "remove", "double", "token"]))
        if what == "replace":
            data[at : at + length] = draw(st.binary(max_size=12))
        elif what == "remove":
            del data[at : at + draw(st.integers(0, 200))]
        elif what == "double":
            data[at:at] = data[at : at + draw(st.integers(0, 200))]
        else:
            tokens = [
                b"9" * 40,
                b"-1",
                b"1e999",
                b"NaN",
                b"\x00",
                b'"',
                b",",
                b"|",
                b"\n",
                b"\xff\xfe",
                b"[" * 3000,
                b"\\ud800",
            ]
            data[at : at + length] = draw(st.sampled_from(tokens))
    return bytes(data)


@st.composite
def contents(draw: st.DrawFn, samples: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    """Return a file's name and content: mostly a valid sample with some places damaged."""
    file, valid = draw(st.sampled_from(samples))
    kind = draw(st.integers(0, 9))
    if kind < 7:
        return file, draw(_mutated(valid))
    if kind == 7:
        return file, draw(st.binary(max_size=200))
    if kind == 8:
        return file, json.dumps(draw(_json)).encode() + b"\n"
    return file, gzip.compress(valid)[: draw(st.integers(1, 400))]


def check(reading: JournalContent) -> None:
    for run in reading.runs:
        assert Run.from_dict(json.loads(json.dumps(run.to_dict(), allow_nan=False))) == run
    assert len({run.id for run in reading.runs}) == len(reading.runs)
    for one in reading.rejected:
        assert one.where
        assert one.reason
        (one.reason + one.text).encode()
    for note in reading.notes:
        note.encode()


def examine(one: Format, samples: list[tuple[str, bytes]], folder: Path, examples: int) -> None:
    """Read many damaged files: each gives a reading whose account adds up, or one of two errors."""

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(contents(samples))
    def read(drawn: tuple[str, bytes]) -> None:
        path: Path = folder / drawn[0]
        path.write_bytes(drawn[1])
        try:
            reading = one.read(path)
        except (DatasetError, TraceFileError):
            return
        check(reading)
        if one.name != "runs":
            account = ACCOUNT.fullmatch(reading.notes[0])
            assert account, reading.notes
            rows, used, runs, aside, skipped = map(int, account.groups())
            assert rows == used + aside + skipped
            assert (runs, aside) == (len(reading.runs), len(reading.rejected))

    read()


def survives(form: Format, file: str, content: bytes, folder: Path) -> None:
    """Read a valid file: it has runs, and each survives the conversion to JSON and back."""
    (folder / file).write_bytes(content)
    reading = form.read(folder / file)
    assert reading.runs
    check(reading)


def refuses_what_is_absent(form: Format, folder: Path) -> None:
    """Read a missing file: the error is one line."""
    with pytest.raises((DatasetError, TraceFileError), match="absent"):
        form.read(folder / "absent")


def refuses_an_endless_line(form: Format, folder: Path) -> None:
    """Read an endless line: it is rejected before it fills the memory."""
    path = folder / "line.txt"
    path.write_bytes(b"1|" + b"x" * 2_000_000)
    with pytest.raises(DatasetError):
        form.read(path)
