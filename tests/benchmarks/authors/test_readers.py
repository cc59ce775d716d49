"""Tests of each reader on a valid file, and of the import command, which works like `vramcast import`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers.authors.__main__ import main
from benchmarks.peers.authors.formats import FORMATS
from vramcast.core.units import GIB, MIB
from vramcast.datasets.journal import JournalContent, read_runs
from vramcast.hardware.cards import device

from . import samples


def reading(format_name: str, content: bytes, folder: Path, file: str = "file.txt") -> JournalContent:
    (folder / file).write_bytes(content)
    return FORMATS[format_name].read(folder / file)


def written(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def test_xmem_row_has_reserved_peak_and_torchvision_model(tmp_path: Path) -> None:
    found = reading("xmem", samples.XMEM, tmp_path)
    cnn, transformer = found.runs
    assert (cnn.workload.target, cnn.workload.num_classes) == ("torchvision:mobilenet_v3_small", 10)
    assert (cnn.workload.batch, cnn.workload.steps, cnn.workload.zero_grad) == (("64x3x86x86",), 4, "step-start")
    assert (cnn.measurement.reserved_bytes, cnn.measurement.process_bytes) == (1000 * MIB, None)
    assert "about reserved" in str(cnn.passport.how)
    assert (transformer.measurement.status, transformer.measurement.censored) == ("oom", True)
    assert transformer.workload.target is None
    assert "zero_grad_mode" in found.rejected[0].reason


def test_reads_xmem_result_file(tmp_path: Path) -> None:
    (run,) = reading("xmem", samples.XMEM_JSON, tmp_path, "evaluation_result.json").runs
    assert (run.workload.target, run.workload.zero_grad) == ("torchvision:vgg16", "before-backward")
    assert run.measurement.reserved_bytes == GIB


def test_makes_runs_of_collected_rows_and_limits(tmp_path: Path) -> None:
    passport = {"properties": {"name": "NVIDIA H100", "total_memory": 85 * 10**9}, "torch": "2.11.0", "cudnn": 91100}
    (tmp_path / "passport.json").write_text(json.dumps(passport))
    found = reading("collect", samples.COLLECT, tmp_path, "runs.jsonl")
    base, fits, fails, shared = found.runs
    assert (base.passport.gpu, base.passport.cudnn, base.workload.optimizer) == ("NVIDIA H100", "91100", "sgdm")
    assert (fits.workload.cap_bytes, fits.measurement.status, fits.measurement.repeat_of) == (2097152, "ok", base.id)
    assert (fails.workload.cap_bytes, fails.measurement.status, fails.measurement.censored) == (2000000, "oom", True)
    assert (shared.workload.num_classes, shared.measurement.status) == (10, "oom")
    assert "shared" in shared.measurement.message
    assert "5 rows = 2 in 4 runs + 3 rejected" in found.notes[0]


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "gpt2", "opt", "gpt_neo", "t5", "llama", "qwen2", "vit"])
def test_names_collected_transformers_with_configuration(name: str, tmp_path: Path) -> None:
    row = samples.collected(kind="hf", name=name, width=256, layers=2, seq=64, vocab=8000, attn="sdpa")
    (run,) = reading("collect", json.dumps(row).encode(), tmp_path).runs
    assert str(run.workload.target).startswith(f"hf:{name}?{{")
    run.workload.job(device("h200"))


def test_keeps_duplicate_run_aside(tmp_path: Path) -> None:
    rows = samples.XMEM.splitlines(keepends=True)
    found = reading("xmem", rows[0] + rows[1] + rows[1], tmp_path)
    assert (len(found.runs), len(found.rejected)) == (1, 1)


def test_prints_summary_without_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path, "mlp.csv", samples.GPUMEMNET_MLP)
    assert main(["gpumemnet", source]) == 0
    text = capsys.readouterr().out
    assert "nothing is written" in text
    assert "2 of 5 networks are rebuilt" in text
    assert [path.name for path in tmp_path.iterdir()] == ["mlp.csv"]


def test_appends_once_and_keeps_bad_rows_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, store = written(tmp_path, "xmem.csv", samples.XMEM), str(tmp_path / "store.jsonl")
    for imported in (2, 0):
        assert main(["xmem", source, "--out", store, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["imported"] == imported
    assert [run.passport.source for run in read_runs(store).runs] == ["xmem.csv"] * 2
    assert (tmp_path / "store.rejected.jsonl").exists()


@pytest.mark.parametrize("arguments", [["sacct", "x"], ["xmem", "absent"], ["xmem", "x", "--out", "store.csv"]])
def test_exits_with_2_for_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
