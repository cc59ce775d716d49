from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.errors import DatasetError
from vramcast.hardware.cards import device
from vramcast.learner import examples
from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES, Circumstances, family_of, features, parts_of
from vramcast.tracer.format.operators import Operator
from vramcast.tracer.format.trace import CIRCUMSTANCES, Action, Category, Phase, Trace

MIB = 1 << 20
CARD = Circumstances(device("a100-40gb"), batch_size=8, input_elements=1024, precision="amp-bf16")


def small_trace() -> Trace:
    """Return a trace with a parameter, then in step 1 a convolution's output and its workspace."""
    return Trace.build(
        {
            "action": [Action.ALLOC, Action.ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED],
            "size_bytes": [2 * MIB, 4 * MIB, 8 * MIB, 8 * MIB, 8 * MIB],
            "block": [0, 1, 2, 2, 2],
            "step": [-1, 1, 1, 1, 1],
            "op": [-1, 0, 0, 0, 0],
            "phase": [Phase.BUILD] + [Phase.FORWARD] * 4,
            "category": [Category.PARAMETER, Category.ACTIVATION, Category.WORKSPACE, Category.UNKNOWN, Category.UNKNOWN],
        },
        ops=["aten::cudnn_convolution"],
        header={"peaks": {"reserved": 40 * MIB, "allocated": 14 * MIB, "requested": 14 * MIB}},
    )


def test_features_match_trace() -> None:
    found = features(small_trace(), CARD)
    assert tuple(found) == NAMES
    assert found["log_reserved"] == pytest.approx(math.log2(40 * MIB))
    assert found["allocated_share"] == 14 / 40
    assert (found["peak_parameter_share"], found["peak_workspace_share"]) == (2 / 14, 8 / 14)
    assert (found["count_convolution"], found["bytes_convolution"]) == (2, 1)
    assert (found["workspace_count"], found["workspace_largest_share"], found["workspace_forward_share"]) == (1, 8 / 40, 8 / 40)
    assert found["without_workspaces_share"] < 1
    assert (found["peak_in_forward"], found["peak_step"]) == (1, 1)
    assert (found["is_autocast"], found["optimizer_states"], found["compute_capability"]) == (1, 0, 80)


def test_finds_optimizer_state_in_trace() -> None:
    """Two tensors of the parameters' size, and a step counter for each."""
    columns = {
        "action": [Action.ALLOC] * 4,
        "size_bytes": [2 * MIB, 2 * MIB, 2 * MIB, 4],
        "block": [0, 1, 2, 3],
        "category": [Category.PARAMETER, *[Category.OPTIMIZER_STATE] * 3],
    }
    trace = Trace.build(columns, header={"peaks": {"reserved": 20 * MIB, "allocated": 6 * MIB}})
    assert features(trace, CARD)["optimizer_states"] == 2


@pytest.mark.parametrize(
    ("counts", "family"),
    [
        ({"count_convolution": 2, "count_attention": 9}, "convolution"),  # a vision transformer's patches
        ({"workspace_count": 1}, "convolution"),
        ({"count_recurrent": 1, "count_softmax": 9}, "recurrent"),
        ({"count_attention": 1}, "attention"),
        ({"count_softmax": 3}, "attention"),  # without the fused operator
        ({"count_softmax": 2, "count_matmul": 9}, "dense"),  # those of a cross-entropy
        ({}, "dense"),
    ],
)
def test_family_follows_from_operators(counts: dict[str, float], family: str) -> None:
    assert family_of({**dict.fromkeys(NAMES, 0.0), **counts}) == family


def test_circumstances_come_from_tracer() -> None:
    seen = {"batch_size": 4, "input_elements": 64, "precision": "bf16", "channels_last": True, "checkpointing": True}
    trace = Trace.build(
        {"action": [], "size_bytes": [], "block": []}, header={CIRCUMSTANCES: {**seen, "cudnn_benchmark": True}}
    )
    found = features(trace, Circumstances.seen(trace, CARD.device), allocated=1, reserved=1)
    names = ("batch_size", "is_half", "is_autocast", "channels_last", "checkpointing", "cudnn_benchmark")
    assert [found[name] for name in names] == [4, 1, 0, 1, 1, 1]


def test_small_card_limits_reserved() -> None:
    trace = small_trace()
    assert {features(trace, CARD)[name] for name in ("on_card_share", "on_card_dies")} == {1.0, 0.0}
    full = replace(CARD, device=CARD.device.with_memory(30 * MIB))
    found = features(trace, full)
    # one segment holds everything; 40 was the header's
    assert (found["on_card_dies"], found["on_card_share"]) == (0.0, 20 / 40)
    dead = features(trace, replace(full, context_bytes=25 * MIB))
    assert dead["on_card_dies"] == 1.0


def test_names_parts_of_cudnn() -> None:
    trace = Trace.build(
        {"action": [], "size_bytes": [], "block": []},
        operators=[Operator.of("aten::cudnn_batch_norm"), Operator.of("aten::mm")],
    )
    assert parts_of(trace, {"cublas", "cudnn"}) == ("cublas", "cudnn", "cudnn normalization")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::cudnn_convolution", "convolution"),
        ("aten::convolution_backward", "convolution_backward"),
        ("aten::addmm", "matmul"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("aten::native_layer_norm", "layer_norm"),
        ("aten::threshold_backward", "activation"),
        ("Optimizer.step", "optimizer"),
    ],
)
def test_operators_have_expected_kinds(name: str, kind: str) -> None:
    assert Operator.of(name).kind.name.lower() == kind


def test_real_job_has_finite_features(trace: Callable[..., Any], tiny_models: Path) -> None:
    result = trace(target=f"{tiny_models}:mlp", batch="8x16", labels="8:int64<4")
    found = features(result.trace, CARD)
    assert all(math.isfinite(value) for value in found.values())
    assert found["count_matmul"] > 0
    assert found["activation_cos"] == 1.0  # ReLU is the first of the list
    assert found["workspace_count"] == 0


def test_examples_round_trip_through_file(tmp_path: Path) -> None:
    example = Example(
        "a", "model", "cnn", "h200", "one", features(small_trace(), CARD), 14, 40, measured_process=99, censored=True
    )
    path = tmp_path / "examples.jsonl"
    examples.append([example], path)
    other = replace(example, id="c", features={"log_requests": 1.0})  # from another vramcast
    examples.append([other], path)
    with open(path, "a") as file:
        file.write('{"id": "b"}\nnonsense\n')
    found, rejected = examples.read(path)
    assert found == [example]
    assert len(rejected) == 3
    assert "features are of another version of vramcast" in rejected[0].reason
    with pytest.raises(DatasetError, match="simulated peaks 0 and 1"):
        Example("a", "g", "f", "h200", "one", {}, 0, 1)
