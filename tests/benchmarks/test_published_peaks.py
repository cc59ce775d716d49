"""Tests of reading published peaks of public scripts: on small made-up texts, without any run."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.accuracy.published_peaks import Figure, batches, report, split_at
from vramcast.jobs.stub_tokenizer import write_tokenizer

TABLE = """
VRAM allocated after loading model to device: 870.53 MB
--- Summary of VRAM Usage (Default Model) ---
Batch Size 1:   4439.02 MB
Batch Size 512: OOM (Peak before OOM: 80228.30 MB)
"""


class _Config:
    vocab_size = 100
    bos_token_id = eos_token_id = 0


def test_reads_published_table_and_printed_output_alike() -> None:
    assert batches(TABLE) == {
        "the model on the card": 870.53,
        "batch 1": 4439.02,
        "batch 512, out of memory": 80228.30,
    }
    assert batches("Peak VRAM allocated for batch size 1: 4440.02 MB") == {}


def test_shows_failed_figures_without_counting_errors() -> None:
    text = report([Figure("a", "allocated", 100.0, 101.0), Figure("b", "reserved", 100.0, None, "it raised")])
    assert "| a | allocated | 100.00 | 101.00 | +1.00 % |" in text
    assert "| b | reserved | 100.00 | - | - | it raised |" in text
    assert "| all | 1 | 1.00 % |" in text


def test_tokenizes_repeated_word_without_spaces(tmp_path: Path) -> None:
    write_tokenizer(_Config(), tmp_path)
    split_at("output", tmp_path / "tokenizer.json")
    assert json.loads((tmp_path / "tokenizer.json").read_text())["pre_tokenizer"]["pattern"] == {"String": "output"}
    assert all(isinstance(pair, str) for pair in json.loads((tmp_path / "tokenizer.json").read_text())["model"]["merges"])
