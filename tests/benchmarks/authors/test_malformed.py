"""Tests of malformed files: a reader returns a Reading or raises one of two errors, and accounts for every row."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.authors.formats import FORMATS
from tests.datasets.histories.malformed import EXAMPLES, examine, refuses_an_endless_line, refuses_what_is_absent, survives

from .samples import SAMPLES


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", FORMATS)
def test_accounts_for_every_row_of_malformed_file(name: str, examples: int, tmp_path: Path) -> None:
    examine(FORMATS[name], SAMPLES[name], tmp_path, examples)


@pytest.mark.parametrize(("name", "file", "content"), [(name, *one) for name, files in SAMPLES.items() for one in files])
def test_restores_every_run_from_json(name: str, file: str, content: bytes, tmp_path: Path) -> None:
    survives(FORMATS[name], file, content, tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_reports_absent_file_in_one_line(name: str, tmp_path: Path) -> None:
    refuses_what_is_absent(FORMATS[name], tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_rejects_endless_line_early(name: str, tmp_path: Path) -> None:
    refuses_an_endless_line(FORMATS[name], tmp_path)
