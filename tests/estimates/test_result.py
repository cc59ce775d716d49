"""`Estimate` on a trace small enough to count by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.hardware.context import context_bytes
from vramcast.jobs.job import Command, Job
from vramcast.tracer.format.trace import Action, Category, Phase, Trace

MIB = 1024**2


def make(**changes: Any) -> Estimate:
    """Return an estimate of 2 MiB with a parameter of 1,000 B, an activation of 600 B and a workspace of 512 B, freed early."""
    trace = Trace.build(
        {
            "action": [
                Action.SEGMENT_ALLOC,
                Action.ALLOC,
                Action.ALLOC,
                Action.ALLOC,
                Action.FREE_REQUESTED,
                Action.FREE_COMPLETED,
            ],
            "address": [2**21, 2**21, 2**21 + 1024, 2**21 + 2048, 2**21 + 2048, 2**21 + 2048],
            "size_bytes": [2 * MIB, 1000, 600, 512, 512, 512],
            "block": [-1, 1, 2, 3, 3, 3],
            "step": [-1, -1, 0, 0, 0, 0],
            "phase": [Phase.BUILD, Phase.BUILD, *[Phase.FORWARD] * 4],
            "op": [-1, -1, 0, 1, -1, -1],
            "module": [-1, -1, 0, 0, -1, -1],
            "category": [7, Category.PARAMETER, Category.ACTIVATION, Category.WORKSPACE, 7, 7],
        },
        ops=["aten::relu", "aten::mm"],
        modules=["block.0"],
    )
    card = device("a100-40gb")
    context = context_bytes(card.key, 13, ("cublas",))
    values: dict[str, Any] = {
        "job": Job(card, target="file.py:model"),
        "trace": trace,
        "allocated": 2560,
        "reserved": 2 * MIB,
        "process": 2 * MIB + context.bytes,
        "min_feasible": None,
        "context": context,
        "estimator": Estimator(level=changes.pop("level", 0.99)),
        "tracer": "nullgpu",
        "torch": "2.11.0",
        "cuda_major": 13,
        "steps": 1,
        "libraries": frozenset({"cublas"}),
    }
    values |= changes
    values["bound"] = PublicBound(values["reserved"], values["libraries"], values.get("unknown", ()))
    return Estimate(**values)


def test_breakdown_counts_whole_blocks() -> None:
    parts = make().breakdown
    # Rounded to 512 B: 1024 + 1024 + 512; the rest of 2 MiB is fragmentation.
    assert (parts["parameters"], parts["activations"], parts["workspaces"]) == (1024, 1024, 512)
    assert parts["fragmentation"] == 2 * MIB - 2560
    assert sum(parts.values()) == make().process


def test_names_position_of_peak() -> None:
    assert make().peak_at == {"step": 1, "phase": "forward", "module": "block.0", "op": "aten::mm"}


def test_sums_and_sorts_modules() -> None:
    assert list(make().by_module.items()) == [("block.0", 1536), ("", 1024)]


def test_timeline_has_a_point_per_change() -> None:
    assert make().timeline == [
        (0, "build", 0, 2 * MIB),
        (0, "build", 1024, 2 * MIB),
        (1, "forward", 2048, 2 * MIB),
        (1, "forward", 2560, 2 * MIB),
        (1, "forward", 2048, 2 * MIB),
    ]


def test_workspaces_have_their_own_peak() -> None:
    assert make().workspace_bytes == 512


def test_empty_trace_has_no_peak() -> None:
    empty = make(trace=Trace.build({"action": [], "size_bytes": [], "block": []}), reserved=0, allocated=0)
    assert empty.peak_at == {"step": None, "phase": None, "module": None, "op": None}
    assert empty.by_module == {}
    assert empty.timeline == []


def test_unknown_calls_and_cudnn_widen_bound() -> None:
    large = 10 * 1024 * MIB
    plain = make(reserved=large).upper_bound
    assert make(reserved=large, unknown=("cudnnX",)).upper_bound > plain
    assert make(reserved=large, libraries=frozenset({"cublas", "cudnn"})).bound_at(0.9) > make(reserved=large).bound_at(0.9)


def test_json_has_plain_values() -> None:
    said = json.loads(make().to_json())
    assert said["target"] == "file.py:model"
    assert said["peaks"]["min_feasible"] is None
    assert said["breakdown"] == make().breakdown


def test_script_has_no_precision_or_optimizer() -> None:
    said = make(job=Job(device("a100-40gb"), command=Command(("train.py", "--x")))).to_dict()
    assert (said["target"], said["precision"], said["optimizer"]) == ("train.py", None, None)


def test_out_of_memory_does_not_fit() -> None:
    full = make(out_of_memory="CUDA out of memory.")
    assert not full.fits()
    assert full.verdict.value == "does not fit"
    assert full.fits("h200")


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_fits_compares_bound_with_card(level: float) -> None:
    estimate = make(level=level)
    assert estimate.fits(estimate.job.device.with_memory(estimate.upper_bound))
    assert not estimate.fits(estimate.job.device.with_memory(estimate.upper_bound - 1))
