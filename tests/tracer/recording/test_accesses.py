"""Accesses on the null GPU: the blocks that each operator touches, and its duration; recording them changes nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vramcast.core.errors import UsageError
from vramcast.hardware.cards import DEVICES, device
from vramcast.hardware.device import Device
from vramcast.hardware.throughput import LAUNCH_US, Roofline
from vramcast.jobs.job import Job
from vramcast.tracer.format.trace import EVENT_COLUMNS, Action, Category, Phase, Trace
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.protocol.run_options import RunOptions
from vramcast.tracer.recording import accesses

from ..traces import without_accesses

Run = Callable[..., Any]
WEIGHT = 4 * 1024 * 4096  # the file's model `wide`: Linear(1024, 4096), ReLU, Linear(4096, 1024) on 64x1024 floats


@pytest.fixture(scope="module")
def options(tiny_models: Path) -> dict[str, Any]:
    return {"target": f"{tiny_models}:wide", "batch": "64x1024", "labels": "64x1024", "optimizer": "adam"}


@pytest.fixture(scope="module")
def accessed(trace: Run, options: dict[str, Any]) -> Trace:
    found: Trace = trace(**options, accesses=True).trace
    return found


def operators(trace: Trace, step: int) -> list[tuple[str, int, list[int], list[int]]]:
    """Return name, begin, blocks read and blocks written of each operator of a step."""
    rows = np.flatnonzero(trace.is_access() & (trace.step == step))
    found: dict[int, tuple[str, int, list[int], list[int]]] = {}
    for row in rows.tolist():
        begin = int(trace.time_us[row])
        _, _, read, written = found.setdefault(begin, (trace.ops[trace.op[row]], begin, [], []))
        (written if trace.action[row] == Action.WRITE else read).append(int(trace.block[row]))
    return list(found.values())


@pytest.mark.parametrize("optimizer", ["adam", "sgdm", "adamw:fused=true"])
def test_accesses_change_no_allocation(trace: Run, options: dict[str, Any], optimizer: str) -> None:
    plain = trace(**{**options, "optimizer": optimizer}).trace
    asked = trace(**{**options, "optimizer": optimizer}, accesses=True).trace
    without = without_accesses(asked)
    assert len(asked) > len(plain)
    assert not plain.is_access().any()
    # The card's addresses may differ between runs; only runs with accesses have the operators' shapes.
    for name in (EVENT_COLUMNS.keys() | {"op", "module"}) - {"time_us", "address", "operator"}:
        np.testing.assert_array_equal(getattr(without, name), getattr(plain, name), name)
    assert asked.header["peaks"] == plain.header["peaks"]


@pytest.mark.usefixtures("keeps_workspaces")
def test_operator_reads_inputs_and_writes_output(accessed: Trace) -> None:
    found = operators(accessed, 2)
    first, second = [o for o in found if o[0] == "aten::addmm"]
    hidden = first[3]
    assert accessed.size_bytes[hidden].tolist() == [4 * 64 * 4096]
    assert sorted(accessed.size_bytes[first[2]].tolist()) == sorted([4 * 4096, 4 * 64 * 1024, WEIGHT])
    clamped = [o for o in found if o[0] == "aten::clamp_min"]
    assert [o[2] for o in clamped] == [hidden]
    assert set(clamped[0][3]) <= set(second[2])


def test_optimizer_touches_all_its_tensors(accessed: Trace) -> None:
    rows = accessed.is_access() & (accessed.step == 2) & (accessed.phase == Phase.OPTIMIZER)
    touched = set(accessed.block[rows].tolist())
    for category, count in ((Category.PARAMETER, 4), (Category.GRADIENT, 4), (Category.OPTIMIZER_STATE, 8)):
        blocks = {b for b in touched if accessed.category[b] == category and accessed.size_bytes[b] > 4}
        assert len(blocks) >= count


def test_backward_reads_activations_again(accessed: Trace) -> None:
    big = [
        int(b)
        for b in np.flatnonzero((accessed.category == Category.ACTIVATION) & (accessed.step == 2))
        if accessed.size_bytes[b] == 4 * 64 * 4096
    ]
    assert big
    for block in big:
        rows = np.flatnonzero(accessed.is_access() & (accessed.block == block))
        assert {Phase.FORWARD, Phase.BACKWARD} <= {Phase(p) for p in accessed.phase[rows]}


def test_clock_follows_roofline(accessed: Trace) -> None:
    assert (np.diff(accessed.time_us) >= 0).all()
    assert accessed.header["clock"]["source"] == "roofline a100-40gb"
    assert accessed.header["clock"]["end_us"] >= accessed.time_us[-1]
    found = operators(accessed, 2)
    at = next(i for i, o in enumerate(found) if o[0] == "aten::addmm")
    roofline = Roofline.of(device("a100-40gb"))
    moved_bytes = 4 * (64 * 1024 + 64 * 4096 + 4096) + WEIGHT
    assert found[at + 1][1] - found[at][1] == roofline.duration_us(2 * 64 * 1024 * 4096, moved_bytes, "fp32")


def test_slower_card_takes_longer(trace: Run, options: dict[str, Any], accessed: Trace) -> None:
    slow = trace(**options, accesses=True, device="t4").trace
    assert slow.header["clock"]["end_us"] > 2 * accessed.header["clock"]["end_us"]


def test_operations_match_torchs_count(probe_flops: tuple[dict[str, float], dict[str, float]]) -> None:
    ours, theirs = probe_flops
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert {"convolution", "convolution_backward", "mm", "bmm"} <= theirs.keys()


@pytest.fixture(scope="module")
def probe_flops() -> tuple[dict[str, float], dict[str, float]]:
    """Return the operations by operator of a small job on the CPU, with its storages treated as the card's: ours, and
    torch's own.
    """

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, stride=2)
            self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
            self.second = nn.Conv2d(4, 8, 3)  # torch counts grouped ones too high on the way back
            self.head = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.second(self.up(self.first(x))).flatten(2).transpose(1, 2)
            x = torch.bmm(x, x.transpose(1, 2))[:, :, :8]
            return self.head(x)

    model = Model()
    batch = torch.randn(16, 3, 33, 33, requires_grad=True)

    def run() -> None:
        model(batch).sum().backward()

    with FlopCounterMode(display=False) as counter:
        run()
    theirs = {str(op).rpartition(".")[2]: float(n) for op, n in counter.get_flop_counts()["Global"].items()}
    original = (accesses._address, accesses._note)
    try:
        accesses._address = lambda tensor: tensor.storage_data_ptr or 0

        def note(event: Any, inside: Any, times: list[int]) -> None:
            fields = event.extra_fields
            if fields.alloc_size > 0:
                inside.allocated[fields.ptr] = inside.kept[fields.ptr] = fields.alloc_size
            else:
                inside.kept.pop(fields.ptr, None)

        accesses._note = note
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, profile_memory=True
            ) as profiler:
                run()
            roots = profiler.profiler.kineto_results.experimental_event_tree()
        found, _ = accesses.operators(roots)
    finally:
        accesses._address, accesses._note = original
    ours: dict[str, float] = {}
    for operator in found:
        if operator.operations:
            name = operator.name.partition("::")[2]
            ours[name] = ours.get(name, 0.0) + operator.operations
    return ours, theirs


# ------------------------------------------------------------------------------------------------ rooflines
def test_every_card_has_peak_and_bandwidth() -> None:
    assert all(Roofline.of(card).bytes_per_s > 0 for card in DEVICES.values())
    sheets = {"v100-16gb": 900e9, "t4": 320e9, "a100-40gb": 1555e9, "h100": 3350e9, "rtx4090": 1008e9, "b200": 7.7e12}
    for key, bytes_per_s in sheets.items():
        assert Roofline.of(device(key)).bytes_per_s == pytest.approx(bytes_per_s, rel=0.01)


def test_longer_time_bounds_operator() -> None:
    roofline = Roofline.of(device("a100-40gb"))
    assert roofline.duration_us(156e12 / 1000, 0, "tf32") == 1000 + LAUNCH_US
    assert roofline.duration_us(312e12 / 1000, 1, "half") == 1000 + LAUNCH_US
    assert roofline.duration_us(1, int(roofline.bytes_per_s / 1000), "fp32") == 1000 + LAUNCH_US
    assert roofline.duration_us(0, 0, "fp32") == LAUNCH_US


def test_marks_assumed_peak() -> None:
    assert Roofline.of(device("rtx3060")).source == "roofline rtx3060 (peak assumed)"


def test_accesses_need_card_with_known_peak(
    tracer: Callable[[], NullGpuTracer], make_job: Callable[..., Job], tiny_models: Path
) -> None:
    import dataclasses

    own: Device = dataclasses.replace(device("t4"), key="my-card", peak=None)
    job = dataclasses.replace(make_job(target=f"{tiny_models}:mlp", batch="8x16"), device=own)
    with pytest.raises(UsageError, match="my-card"):
        tracer().trace(job, RunOptions(accesses=True))
