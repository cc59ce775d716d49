"""The class of a job, derived from its trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vramcast.hardware.stack import Stack
from vramcast.learner.traits import MEANINGS, NO_WORSE, completed, traits_of
from vramcast.tracer.format.ledger import CallHandling, Code, Entry
from vramcast.tracer.format.trace import CIRCUMSTANCES, LOOPS, Action, Category, Phase, Trace

MIB = 1 << 20
STACK = Stack("2.8.0", "12.8", "9.10.2.21")


def job(operator: str = "aten::mm", workspace_mib: int = 0, *, ledger: tuple[Entry, ...] = (), **header: Any) -> Trace:
    """Return a job that allocates 30 MiB, and then a workspace of the same operator."""
    columns = {
        "action": [Action.ALLOC, Action.ALLOC] if workspace_mib else [Action.ALLOC],
        "size_bytes": [30 * MIB, workspace_mib * MIB][: 1 + bool(workspace_mib)],
        "block": [0, 1][: 1 + bool(workspace_mib)],
        "step": [1, 1][: 1 + bool(workspace_mib)],
        "op": [0, 0][: 1 + bool(workspace_mib)],
        "category": [Category.ACTIVATION, Category.WORKSPACE][: 1 + bool(workspace_mib)],
    }
    return Trace.build(columns, ops=[operator], ledger=ledger, header=header)


def steps(*sizes_mib: int) -> Trace:
    """Return a job whose forward passes allocate these sizes."""
    n = len(sizes_mib)
    columns = {
        "action": [Action.ALLOC] * n,
        "size_bytes": [size * MIB for size in sizes_mib],
        "block": list(range(n)),
        "step": list(range(n)),
        "phase": [Phase.FORWARD] * n,
        "op": [0] * n,
        "category": [Category.ACTIVATION] * n,
    }
    return Trace.build(columns, ops=["aten::mm"])


def stopped_within_step() -> Trace:
    """Return a job that was stopped in its third step: the rows after the last end of a step belong to that step."""
    loop = {"number": 0, "phase": "training", "ends": [1, 2], "length": None, "is_open": True}
    return replace(steps(30, 30, 30, 10), step=np.array([0, 1, 1, 1], np.int32), header={LOOPS: {"all": [loop], "kept": []}})


def traits(trace: Trace, **changes: Any) -> dict[str, str]:
    """Return the traits of a job that torch 2.8 ran with its own cuDNN."""
    known: dict[str, Any] = {
        "gpu": "h100", "reserved": (30 + 20) * MIB, "tracer": "nullgpu", "torch": "2.8.0+cu128", "stack": STACK,
        "asked_cudnn": "9.10.2", "ranks": 1, "is_full": False,
    }  # fmt: skip
    return traits_of(trace, **known | changes)


def test_every_trait_has_value_and_meaning() -> None:
    found = traits(job())
    assert found.keys() == MEANINGS.keys()
    assert found == {
        "operators": "dense", "convolutions": "none", "share": "none", "depthwise": "none", "workspaces": "none",
        "plans": "none", "cudnns": "one", "mode": "inference", "compiled": "no", "values": "known", "batches": "alike",
        "ranks": "one", "speed": "any", "torch": "same", "unknown": "none", "card": "free", "size": "below 256 MiB",
        "precision": "fp32", "tracer": "nullgpu", "gpu": "h100",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("trace", "changes", "trait", "value"),
    [
        (job("aten::cudnn_convolution", 20), {}, "operators", "convolution"),
        (job("aten::cudnn_convolution", 20), {}, "convolutions", "plain"),
        (job("aten::_conv_depthwise2d"), {}, "convolutions", "depthwise"),
        (job("aten::cudnn_convolution"), {"without_workspaces": 30 * MIB}, "workspaces", "large"),
        (job("aten::cudnn_convolution"), {"without_workspaces": 49.5 * MIB}, "workspaces", "small"),
        (job("aten::cudnn_convolution"), {"larger": 50 * MIB}, "cudnns", "alike"),
        (job("aten::cudnn_convolution"), {"larger": 52 * MIB}, "cudnns", "near"),
        (job("aten::cudnn_convolution"), {"larger": 90 * MIB}, "cudnns", "apart"),
        (job("aten::cudnn_convolution"), {"larger": 50 * MIB, "is_unlike": True}, "cudnns", "alike"),
        (job("aten::cudnn_convolution"), {"is_unlike": True}, "cudnns", "alone"),
        (job("aten::cudnn_convolution"), {}, "cudnns", "one"),
        (job(), {"is_unlike": True}, "cudnns", "one"),
        (job("aten::cudnn_convolution"), {}, "workspaces", "none"),
        (job("aten::cudnn_convolution", 20), {}, "plans", "exact"),
        (job("aten::cudnn_convolution", 20), {"asked_cudnn": "9.12.0"}, "plans", "other"),
        (job("aten::cudnn_convolution", 20), {"asked_cudnn": ""}, "plans", "other"),  # no cuDNN answered
        (job("aten::_scaled_dot_product_flash_attention"), {}, "operators", "attention"),
        (job("## Call CompiledFxGraph fabc ##"), {}, "compiled", "yes"),
        (job("CompiledFunctionBackward"), {}, "compiled", "yes"),
        (job(ledger=(Entry(CallHandling.BRANCH, "", 1),)), {}, "values", "drawn"),
        (job(ledger=(Entry(CallHandling.SPEED, "", 1),)), {}, "speed", "decides"),
        (job(ledger=(Entry(CallHandling.REFUSED, "cuFoo", 1),)), {}, "unknown", "some"),
        (job(ledger=(Entry.of(CallHandling.BOUNDED, Code.CUBLASLT_WORKSPACE, 1),)), {}, "unknown", "none"),
        (job(), {"batches_vary": True}, "batches", "vary"),
        (steps(30, 30, 30), {}, "batches", "alike"),
        (steps(90, 30, 30), {}, "batches", "alike"),  # the first one also keeps memory that later ones reuse
        (steps(30, 30, 20, 30), {}, "batches", "alike"),  # the rest of an epoch
        (stopped_within_step(), {}, "batches", "alike"),
        (steps(20, 30, 30), {}, "batches", "vary"),
        (steps(30, 25, 20), {}, "batches", "vary"),
        (job(), {"ranks": 8}, "ranks", "several"),
        (job(), {"torch": "2.11.0+cu130"}, "torch", "other"),
        (job(), {"stack": Stack()}, "torch", "same"),  # no other value is given
        (job(), {"is_full": True}, "card", "full"),
        (job(peaks={"retries": 1}), {}, "card", "full"),
        (job(), {"reserved": 2 << 30}, "size", "below 4 GiB"),
        (job(), {"reserved": 5 << 30}, "size", "4 GiB or more"),
        (job(**{CIRCUMSTANCES: {"precision": "amp-bf16"}}), {}, "precision", "amp"),
        (job(**{CIRCUMSTANCES: {"precision": "bf16"}}), {}, "precision", "half"),
    ],
)  # fmt: skip
def test_derives_traits_from_trace_and_circumstances(trace: Trace, changes: dict[str, Any], trait: str, value: str) -> None:
    assert traits(trace, **changes)[trait] == value


def test_replaces_value_within_its_trait() -> None:
    for (trait, value), other in NO_WORSE.items():
        assert value in MEANINGS[trait]
        assert other in MEANINGS[trait]
        assert value != other


@pytest.mark.parametrize(
    ("workspace_mib", "operator", "share"), [(0, "aten::mm", "none"), (20, "aten::cudnn_convolution", "much")]
)
def test_share_of_convolutions_is_that_of_the_bytes(workspace_mib: int, operator: str, share: str) -> None:
    assert traits(job(operator, workspace_mib))["share"] == share


def test_patch_embedding_is_little() -> None:
    columns = {"action": [Action.ALLOC] * 2, "size_bytes": [MIB, 99 * MIB], "block": [0, 1], "step": [1, 1], "op": [0, 1]}
    found = traits(Trace.build(columns, ops=["aten::cudnn_convolution", "aten::mm"]))
    assert (found["operators"], found["share"]) == ("convolution", "little")


def test_backward_pass_makes_a_training() -> None:
    columns = {"action": [Action.ALLOC], "size_bytes": [MIB], "block": [0], "step": [1], "phase": [Phase.BACKWARD], "op": [0]}
    assert traits(Trace.build(columns, ops=["aten::mm"]))["mode"] == "training"


@pytest.mark.parametrize(
    ("plans", "depthwise", "unqueried"),
    [("other", "depthwise", "unqueried"), ("exact", "depthwise", "queried"), ("other", "plain", "none")],
)
def test_older_examples_get_the_younger_traits(plans: str, depthwise: str, unqueried: str) -> None:
    found = completed({"operators": "convolution", "convolutions": depthwise, "plans": plans}, {})
    assert (found["share"], found["depthwise"], found["mode"]) == ("much", unqueried, "training")
    assert completed(found, {}) == found
    assert completed({"operators": "dense"}, {})["share"] == "none"
    assert completed({}, {}) == {}
