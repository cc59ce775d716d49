"""Tests of the survey of public scripts: its table, its stub data, and the verdict on a run; no script is run."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scripts import data as scripts_data
from benchmarks.scripts.entry import Entry
from benchmarks.scripts.survey import Outcome, Verdict, missing, report, share, verdict_of, words_of
from benchmarks.scripts.table import ENTRIES
from vramcast.hardware.cards import device

ENTRY = Entry("a", "owner/name", "python train.py --data {data:chars} --out {out}", own="no such model")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_starts_every_entry(entry: Entry) -> None:
    device(entry.device)
    assert entry.repository.count("/") == 1 or not (entry.repository or entry.folder)
    assert all("=" in assigned for assigned in entry.environment)
    assert {name for name, _ in entry.linked} <= scripts_data.MAKERS.keys()


def test_names_entries_uniquely() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


def test_makes_stub_data_named_in_words(tmp_path: Path) -> None:
    words = words_of(ENTRY, tmp_path, tmp_path / "out")
    assert words[:3] == ["python", "train.py", "--data"]
    assert (Path(words[3]) / "train.bin").exists()
    before = (tmp_path / "chars" / "train.bin").stat().st_mtime_ns
    words_of(ENTRY, tmp_path, tmp_path / "out")
    assert (tmp_path / "chars" / "train.bin").stat().st_mtime_ns == before


def test_names_missing_sources_and_packages(tmp_path: Path) -> None:
    assert missing(ENTRY, tmp_path) == "no sources of owner/name"
    (tmp_path / "name").mkdir()
    assert missing(ENTRY, tmp_path) == ""
    assert missing(Entry("b", "owner/name", "x", packages=("no_such_package",)), tmp_path) == "needs no_such_package"


@pytest.mark.parametrize(
    ("code", "text", "ended", "verdict"),
    [
        (0, "", "", Verdict.ANSWERED),
        (1, "", "", Verdict.ANSWERED),
        (0, "", "it raised ValueError", Verdict.PARTLY),
        (0, "", "it raised OSError: no such model", Verdict.OWN),
        (3, "OSError: no such model", "", Verdict.OWN),
        (3, "OSError", "", Verdict.FAILED),
        (2, "", "", Verdict.FAILED),
        (None, "No module named vramcast", "", Verdict.FAILED),
    ],
)
def test_derives_verdict_from_exit_code(code: int | None, text: str, ended: str, verdict: Verdict) -> None:
    assert verdict_of(ENTRY, code, text, ended) is verdict


def test_leaves_impossible_runs_out_of_share() -> None:
    verdicts = (Verdict.ANSWERED, Verdict.PARTLY, Verdict.FAILED, Verdict.OWN, Verdict.LEFT_OUT)
    outcomes = [Outcome(str(i), verdict) for i, verdict in enumerate(verdicts)]
    assert share(outcomes) == (1, 3)
    assert "1 of 3 answer (33 %" in report(outcomes)


def test_reads_stub_mnist_by_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compress = gzip.compress
    # This test reads only the small images, and no compression level makes noise smaller.
    monkeypatch.setattr(gzip, "compress", lambda content, level: compress(content[:8_000_000], 0))
    scripts_data.mnist(tmp_path)
    path = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    content = path.read_bytes()
    assert gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes()) == content
    assert struct.unpack(">IIII", content[:16]) == (2051, 10_000, 28, 28)
    assert len(content) == 16 + 10_000 * 28 * 28


def test_draws_stub_tokens_below_vocabulary(tmp_path: Path) -> None:
    scripts_data.gpt2_tokens(tmp_path)
    assert np.fromfile(tmp_path / "train.bin", dtype=np.uint16).max() < 50257
