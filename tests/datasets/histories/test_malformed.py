"""Whatever a file holds, a reader gives a Reading or one of two errors, and every row is accounted for."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vramcast.datasets.histories.formats import FORMATS
from vramcast.datasets.journal import Reading
from vramcast.datasets.run import Run
from vramcast.errors import DatasetError, TraceFileError

from .samples import SAMPLES

EXAMPLES = 500
ACCOUNT = re.compile(r".*: (\d+) rows = (\d+) in (\d+) runs \+ (\d+) kept aside \+ (\d+) skipped.*", re.DOTALL)
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
    """Return a valid file with some places overwritten, cut out, doubled or put elsewhere."""
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
def _content(draw: st.DrawFn, name: str) -> tuple[str, bytes]:
    file, valid = draw(st.sampled_from(SAMPLES[name]))
    kind = draw(st.integers(0, 9))
    if kind < 7:
        return file, draw(_mutated(valid))
    if kind == 7:
        return file, draw(st.binary(max_size=200))
    if kind == 8:
        return file, json.dumps(draw(_json)).encode() + b"\n"
    return file, gzip.compress(valid)[: draw(st.integers(1, 400))]


def check(reading: Reading) -> None:
    for run in reading.runs:
        assert Run.from_dict(json.loads(json.dumps(run.to_dict(), allow_nan=False))) == run
    assert len({run.id for run in reading.runs}) == len(reading.runs)
    for one in reading.rejected:
        assert one.where
        assert one.reason
        (one.reason + one.text).encode()
    for note in reading.notes:
        note.encode()


@pytest.mark.parametrize("name", FORMATS)
def test_a_malformed_file_gives_a_reading_or_an_error_and_loses_no_row(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("malformed")

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(_content(name))
    def examine(drawn: tuple[str, bytes]) -> None:
        path: Path = folder / drawn[0]
        path.write_bytes(drawn[1])
        try:
            reading = FORMATS[name].read(path)
        except (DatasetError, TraceFileError):
            return
        check(reading)
        if name != "runs":
            account = ACCOUNT.fullmatch(reading.notes[0])
            assert account, reading.notes
            rows, used, runs, aside, skipped = map(int, account.groups())
            assert rows == used + aside + skipped
            assert (runs, aside) == (len(reading.runs), len(reading.rejected))

    examine()


@pytest.mark.parametrize(("name", "file", "content"), [(name, *one) for name, files in SAMPLES.items() for one in files])
def test_every_run_of_a_valid_file_survives_the_way_to_json_and_back(
    name: str, file: str, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / file).write_bytes(content)
    reading = FORMATS[name].read(tmp_path / file)
    assert reading.runs
    check(reading)


@pytest.mark.parametrize("name", FORMATS)
def test_an_absent_file_is_an_error_in_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises((DatasetError, TraceFileError), match="absent"):
        FORMATS[name].read(tmp_path / "absent")


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"snapshot", "runs"}))
def test_a_line_which_never_ends_is_refused_before_it_fills_the_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_bytes(b"1|" + b"x" * 2_000_000)
    with pytest.raises(DatasetError):
        FORMATS[name].read(path)
