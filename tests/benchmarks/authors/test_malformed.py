"""Tests of malformed files: a reader returns a Reading or raises one of two errors, and accounts for every row."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.authors.formats import FORMATS
from tests.datasets.histories.malformed import EXAMPLES, examine, refuses_an_endless_line, refuses_what_is_absent, survives

from .samples import SAMPLES


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_malformed_file_gives_a_reading_or_an_error_and_loses_no_row(name: str, examples: int, tmp_path: Path) -> None:
    examine(FORMATS[name], SAMPLES[name], tmp_path, examples)


@pytest.mark.parametrize(("name", "file", "content"), [(name, *one) for name, files in SAMPLES.items() for one in files])
def test_every_run_of_a_valid_file_survives_the_way_to_json_and_back(
    name: str, file: str, content: bytes, tmp_path: Path
) -> None:
    survives(FORMATS[name], file, content, tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_an_absent_file_is_an_error_in_one_line(name: str, tmp_path: Path) -> None:
    refuses_what_is_absent(FORMATS[name], tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_line_which_never_ends_is_refused_before_it_fills_the_memory(name: str, tmp_path: Path) -> None:
    refuses_an_endless_line(FORMATS[name], tmp_path)
