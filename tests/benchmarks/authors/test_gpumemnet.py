"""Tests of GPUMemNet's rebuilt rows: the lists of layers agree with the data, and the modules with the lists."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from benchmarks.peers.authors import architectures, collected, gpumemnet, networks
from benchmarks.peers.authors.architectures import Layer
from vramcast.core.units import MIB
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job
from vramcast.tracer.program.model_program import build_model

from . import samples

_SHARED = Path(os.environ.get("VRAMCAST_SHARED") or Path(__file__).parents[3].parent / "shared")
_DATA = _SHARED / "data" if (_SHARED / "data").is_dir() else _SHARED
_FILES = sorted(_DATA.glob("gpumemnet_*.csv"))
_SHARE = 0.99  # arbitrary: the project's aim

# Class in torch.nn -> name in the lists, where they differ.
_NAMES = {
    "Linear": "linear", "Conv2d": "conv2d", "BatchNorm1d": "batch_normalization", "BatchNorm2d": "batchnorm2d",
    "Dropout": "dropout", "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
}  # fmt: skip


def layers_run(model: torch.nn.Module, inputs: torch.Tensor, last: str) -> list[Layer]:
    """Return the list of layers in the order of a forward pass of two samples."""
    found: list[Layer] = []

    def note(module: torch.nn.Module, _: object, output: torch.Tensor) -> None:
        kind = type(module).__name__
        if kind in ("Identity", "Flatten", "_HalvedUnlessOnePixel") and last != "Identity":
            return
        parameters = 0 if kind == "PReLU" else sum(p.numel() for p in module.parameters())
        found.append(Layer(_NAMES.get(kind, kind), output[0].numel(), parameters))

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(note)
    model(inputs)
    return [*found[:-1], Layer(last, found[-1].activations)]


@pytest.mark.parametrize("shape", architectures.MLP_SHAPES)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_mlp_runs_layers_of_its_list(shape: str, batch_norm: bool) -> None:
    model = networks.mlp(33, 5, 3, shape, "prelu", 0.5 if batch_norm else None, batch_norm, "Softmax")
    listed = architectures.mlp_layers(33, 5, 3, shape, "prelu", dropout=batch_norm, batch_norm=batch_norm, last="Softmax")
    assert layers_run(model, torch.zeros(2, 33), "Softmax") == listed


@pytest.mark.parametrize("shape", architectures.CNN_SHAPES)
@pytest.mark.parametrize("size", [9, 30])
@pytest.mark.parametrize("drops", [False, True])
def test_cnn_runs_layers_of_its_list(shape: str, size: int, drops: bool) -> None:
    with torch.device("meta"):  # the largest has 23 million weights
        model = networks.cnn(3, 5, 13, shape, 16, size, "leaky_relu", 0.5 if drops else None, drops, interval=1)
        inputs = torch.zeros(2, 3, size, size)
    blocks = architectures.cnn_blocks(3, 13, shape, 16, size, 1)
    listed = architectures.cnn_layers(blocks, 3, 5, "leaky_relu", dropout=drops, batch_norm=drops)
    assert layers_run(model, inputs, "softmax") == listed


def test_target_builds_network_of_row(tmp_path: Path) -> None:
    path = tmp_path / "mlp.csv"
    path.write_bytes(samples.GPUMEMNET_MLP)
    run = gpumemnet.read(path).runs[0]
    job: Job = run.workload.job(device("a100-40gb"), trust=True)
    model = build_model(job)
    assert [p.numel() for p in model.parameters()] == [32, 4, 12, 3]
    assert (run.measurement.process_bytes, run.passport.period_ms) == (1445 * MIB, 1000.0)


def test_separates_crashed_different_and_unlisted_rows(tmp_path: Path) -> None:
    path = tmp_path / "mlp.csv"
    path.write_bytes(samples.GPUMEMNET_MLP)
    found = gpumemnet.read(path)
    good, crashed, other = found.runs
    assert good.measurement.status == "ok"
    assert (crashed.measurement.status, crashed.measurement.censored) == ("error", True)
    assert other.workload.target is None
    assert [one.reason.split(" ")[0] for one in found.rejected] == ["The", "The"]
    assert "2 of 5 networks are rebuilt" in found.notes[1]


def test_censors_cnn_rows_near_capacity_or_dead(tmp_path: Path) -> None:
    path = tmp_path / "cnn.csv"
    path.write_bytes(samples.GPUMEMNET_CNN)
    runs = gpumemnet.read(path).runs
    assert [(run.measurement.status, run.measurement.censored) for run in runs] == [
        ("ok", False), ("ok", True), ("oom", True), ("error", True),
    ]  # fmt: skip
    assert runs[3].measurement.process_bytes is None
    assert all(run.workload.target for run in runs)


@pytest.mark.skipif(not _FILES, reason="GPUMemNet's tables are missing (VRAMCAST_SHARED)")
def test_rebuilds_nearly_every_published_row() -> None:
    rows = verified = unlisted = 0
    for path in _FILES:
        found = gpumemnet.read(path)
        assert not found.rejected
        rows += len(found.runs)
        empty = [run for run in found.runs if "its list of layers is empty" in run.measurement.message]
        unlisted += len(empty)
        verified += sum(run.workload.target is not None for run in found.runs) - len(empty)
    assert verified >= _SHARE * rows, f"{verified} of {rows} verified, {unlisted} from the name alone"


def test_collected_networks_take_batches_of_rows(tmp_path: Path) -> None:
    rows = [
        samples.collected(id="1"),
        samples.collected(id="2", kind="cnn", filters=8, kernel=3, size=16, depth=7, shape="residual"),
        samples.collected(id="3", kind="cnn", filters=8, kernel=1, size=16, depth=7, shape="grouped"),
        samples.collected(id="4", kind="tf", width=16, layers=1, heads=2, seq=5, vocab=11),
    ]
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    outputs = []
    for run in collected.read(path).runs:
        job = run.workload.job(device("h200"), trust=True)
        batch = torch.zeros(job.batch.shape, dtype=getattr(torch, job.batch.dtype))
        outputs.append(tuple(build_model(job)(batch).shape))
    assert outputs == [(16, 5), (16, 100), (16, 100), (16, 10)]
