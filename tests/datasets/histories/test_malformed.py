"""For any file, a reader returns a Reading or raises one of two errors, and accounts for every row."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.datasets.histories.formats import FORMATS

from .malformed import EXAMPLES, examine, refuses_an_endless_line, refuses_what_is_absent, survives
from .samples import SAMPLES


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", FORMATS)
def test_malformed_file_loses_no_row(name: str, examples: int, tmp_path: Path) -> None:
    examine(FORMATS[name], SAMPLES[name], tmp_path, examples)


@pytest.mark.parametrize(("name", "file", "content"), [(name, *one) for name, files in SAMPLES.items() for one in files])
def test_runs_survive_round_trip_through_json(name: str, file: str, content: bytes, tmp_path: Path) -> None:
    survives(FORMATS[name], file, content, tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_missing_file_is_one_line_error(name: str, tmp_path: Path) -> None:
    refuses_what_is_absent(FORMATS[name], tmp_path)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"snapshot", "runs", "logged"}))
def test_rejects_endless_line(name: str, tmp_path: Path) -> None:
    refuses_an_endless_line(FORMATS[name], tmp_path)
