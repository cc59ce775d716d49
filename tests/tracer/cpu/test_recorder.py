"""The CPU tracer's traces: the requests of a GPU, as on the null GPU, and the category of each block."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lanes import sampled
from vramcast.jobs.job import Job
from vramcast.tracer.format.trace import Action, Category, Phase, Trace
from vramcast.tracer.portable_tracers import CPU, FAKE
from vramcast.tracer.protocol.job_result import Result

Run = Callable[..., Result]
WEIGHT = 4 * 1024 * 4096
PARAMETERS = 2 * WEIGHT + 4 * 4096 + 4 * 1024
CUBLAS_BYTES = {"a100-40gb": 8_519_680, "h100-80gb": 33_554_432}
WIDE: dict[str, Any] = {"batch": "64x1024", "labels": "64x1024", "optimizer": "adam"}


def requests(trace: Trace) -> list[tuple[int, int]]:
    """Return every request and free in order, with its size as the allocator rounds it."""
    chosen = np.isin(trace.action, (Action.ALLOC, Action.FREE_REQUESTED))
    return list(zip(trace.action[chosen].tolist(), trace.rounded_bytes()[chosen].tolist(), strict=True))


def traced(result: Result) -> Trace:
    assert result.trace is not None
    return result.trace


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("wide", WIDE),
        ("wide", {**WIDE, "optimizer": "adagrad", "zero_grad": "after-step"}),
        ("wide", {**WIDE, "optimizer": "sgdm", "zero_grad": "before-backward", "overlap_inputs": False}),
        ("wide", {**WIDE, "precision": "bf16"}),
        ("wide", {"batch": "64x1024", "mode": "infer"}),
        ("dropped", {"batch": "64x1024", "optimizer": "adamw"}),
        ("Shared", {"batch": "64x512", "labels": "64:int64<10", "optimizer": "rmsprop"}),
        ("Tied", {"batch": "8x32:int64<1000", "labels": "8x32:int64<1000", "optimizer": "sgd"}),
    ],
)
def test_requests_match_null_gpu(name: str, options: dict[str, Any], on_cpu: Run, trace: Run, models: Path) -> None:
    there = trace(target=f"{models}:{name}", **options)
    assert requests(traced(on_cpu(name, **options))) == requests(traced(there))


def test_autocast_casts_like_cuda(on_cpu: Run, trace: Run, models: Path) -> None:
    options = {**WIDE, "precision": "amp-bf16", "labels": None}
    there = trace(target=f"{models}:wide", **options)
    # Autocast drops its cached weights in the order of their addresses, which differs between runs.
    assert sorted(requests(traced(on_cpu("wide", **options)))) == sorted(requests(traced(there)))


@pytest.mark.parametrize("name", ["convolutions", "Residual"])
@pytest.mark.parametrize("cudnn_benchmark", [False, True])
def test_convolutions_take_null_gpus_workspaces(
    name: str, cudnn_benchmark: bool, on_cpu: Run, trace: Run, models: Path
) -> None:
    options = {"batch": "8x3x32x32", "labels": "8:int64<10", "optimizer": "adam", "cudnn_benchmark": cudnn_benchmark}
    there = trace(target=f"{models}:{name}", **options)
    here = on_cpu(name, **options)
    assert requests(traced(here)) == requests(traced(there))
    handed = {entry.size_bytes for entry in there.ledger if entry.kind == "workspace"}
    workspaces = set(traced(here).size_bytes[traced(here).category == Category.WORKSPACE].tolist())
    assert handed <= workspaces or cudnn_benchmark  # a search also tries plans that PyTorch does not take
    emptied = np.count_nonzero(traced(here).action == Action.EMPTY_CACHE)
    assert (emptied > 0) == (cudnn_benchmark and not _unanswered(here))


def _unanswered(result: Result) -> list[str]:
    return [entry.words for entry in result.ledger if entry.kind == "assumed"]


def test_names_unanswered_workspaces(make_job: Callable[..., Job], models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CUDNN_DIR", str(models))  # a file, not a folder of libraries
    job = make_job(target=f"{models}:convolutions", batch="2x3x32x32", search_path=tuple(sys.path))
    (name,) = _unanswered(CPU.trace(job, timeout_s=120.0))
    assert name.startswith("convolution workspaces: 0 (")


def test_attention_with_dropout_keeps_no_scores(on_cpu: Run) -> None:
    trace = traced(on_cpu("Attention", batch="2x512x128"))
    scores_bytes = 4 * 2 * 2 * 512 * 512
    assert scores_bytes not in trace.size_bytes.tolist()
    assert 4 * 2 * 2 * 512 in trace.size_bytes[trace.category == Category.ACTIVATION].tolist()  # the log-sum-exp


# Jobs for both portable tracers; each of them applies different rules.
BOTH: dict[str, dict[str, Any]] = {
    **{f"wide {optimizer}": {**WIDE, "optimizer": optimizer} for optimizer in ("sgdm", "adagrad", "adafactor")},
    **{f"wide {precision}": {**WIDE, "precision": precision} for precision in ("fp16", "amp-bf16", "amp-fp16")},
    "dropped": {"batch": "64x1024", "mode": "infer"},
    "Shared": {"batch": "64x512", "labels": "64:int64<10", "precision": "amp-bf16"},
    "Residual": {"batch": "8x3x32x32", "labels": "8:int64<10", "precision": "amp-fp16", "channels_last": True},
    "convolutions": {"batch": "8x3x32x32", "labels": "8:int64<10", "precision": "bf16", "cudnn_benchmark": True},
    "Attention": {"batch": "2x100x128", "optimizer": "adam"},
    "Attention flash": {"batch": "2x512x128", "precision": "amp-bf16"},
    "Attention cudnn": {"batch": "2x512x128", "precision": "bf16", "device": "h100-80gb"},
    **{f"Masked {precision}": {"batch": "2x100x128", "precision": precision} for precision in ("fp32", "bf16", "amp-fp16")},
    "Losses": {"batch": "8x3x32x32"},
    "Losses amp-bf16": {"batch": "8x3x32x32", "precision": "amp-bf16"},
    "Norms": {"batch": "8x3x32x32"},
    "Norms amp-bf16": {"batch": "8x3x32x32", "precision": "amp-bf16"},
    "Moved": {"batch": "8x3x32x32"},
}


@pytest.mark.parametrize("job", sampled(list(BOTH), 3))
def test_cpu_and_fake_tracers_agree(job: str, on_cpu: Run, make_job: Callable[..., Job], models: Path) -> None:
    name = job.partition(" ")[0]
    fake = FAKE.trace(make_job(target=f"{models}:{name}", search_path=tuple(sys.path), **BOTH[job]), timeout_s=120.0)
    here, there = traced(on_cpu(name, **BOTH[job])), traced(fake)
    for column in ("action", "size_bytes", "block", "step", "phase", "category"):
        assert np.array_equal(getattr(here, column), getattr(there, column)), column
    assert [here.ops[i] for i in here.op[here.op >= 0]] == [there.ops[i] for i in there.op[there.op >= 0]]


def test_parameters_gradients_and_state_have_true_sizes(on_cpu: Run) -> None:
    trace = traced(on_cpu("wide", **WIDE))
    row = int(np.flatnonzero((trace.step == 1) & (trace.phase == Phase.OPTIMIZER))[-1])
    held = trace.by_category_at(row)
    # All four tensors are multiples of 512 B. Adam keeps two states; its step counters stay on the host.
    assert held[Category.PARAMETER] == PARAMETERS
    assert held[Category.GRADIENT] == PARAMETERS
    assert held[Category.OPTIMIZER_STATE] == 2 * PARAMETERS
    assert held[Category.INPUT] == 2 * 4 * 64 * 1024
    assert held[Category.UNKNOWN] == 0


def test_factored_state_matches_optimizer(on_cpu: Run) -> None:
    trace = traced(on_cpu("wide", batch="64x1024", optimizer="adafactor"))
    state = trace.size_bytes[trace.category == Category.OPTIMIZER_STATE]
    # A row and a column of each matrix, and the whole of each bias.
    assert sorted(state.tolist()) == sorted([4 * 4096, 4 * 1024] * 2 + [4 * 4096, 4 * 1024])


def test_phases_follow_each_other_in_every_step(on_cpu: Run) -> None:
    trace = traced(on_cpu("wide", **WIDE))
    allocs = trace.action == Action.ALLOC
    assert set(trace.step[allocs & (trace.phase == Phase.BUILD)].tolist()) == {-1}
    for step in range(3):
        phases = trace.phase[allocs & (trace.step == step)].tolist()
        order = [Phase(phase) for i, phase in enumerate(phases) if i == 0 or phases[i - 1] != phase]
        assert order == [Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


def test_backward_blocks_belong_to_forward_module(on_cpu: Run) -> None:
    trace = traced(on_cpu("wide", **WIDE))
    allocs = (trace.action == Action.ALLOC) & (trace.step == 1)
    weights = allocs & (trace.phase == Phase.BACKWARD) & (trace.size_bytes == WEIGHT)
    assert [trace.modules[i] for i in trace.module[weights]] == ["2", "0"]
    assert {trace.ops[i] for i in trace.op[weights]} == {"aten::mm"}
    relu = allocs & (trace.phase == Phase.FORWARD) & (trace.module == trace.modules.index("1"))
    assert [trace.ops[i] for i in trace.op[relu]] == ["aten::clamp_min"]


@pytest.mark.usefixtures("keeps_workspaces")
@pytest.mark.parametrize("card", CUBLAS_BYTES)
def test_each_thread_takes_one_cublas_workspace(card: str, on_cpu: Run) -> None:
    # A batch of 64 would make results of 1 MiB, as large as cuBLASLt's workspace.
    trace = traced(on_cpu("wide", batch="32x1024", labels="32x1024", device=card))
    workspaces = trace.category == Category.WORKSPACE
    own_lt = [1 << 20] if tuple(map(int, metadata.version("torch").split(".")[:2])) < (2, 13) else []
    assert trace.size_bytes[workspaces].tolist() == [CUBLAS_BYTES[card], *own_lt, CUBLAS_BYTES[card]]
    assert trace.phase[workspaces].tolist() == [Phase.FORWARD] * (1 + len(own_lt)) + [Phase.BACKWARD]


def test_model_may_branch_on_its_values(on_cpu: Run) -> None:
    result = on_cpu("Choosing", batch="8x16")
    assert result.steps == 3
    outputs = traced(result)
    forward = (outputs.action == Action.ALLOC) & (outputs.phase == Phase.FORWARD) & (outputs.step == 0)
    called = [outputs.ops[i] for i in outputs.op[forward & (outputs.category != Category.WORKSPACE)]].count("aten::addmm")
    assert called == 2  # the sum of values between 0 and 1 is above 0


def test_inference_holds_no_activation(on_cpu: Run) -> None:
    result = on_cpu("wide", batch="64x1024", mode="infer")
    trace = traced(result)
    assert int(trace.step.max()) == 2
    assert not (trace.phase == Phase.BACKWARD).any()
    assert int(trace.size_bytes[trace.category == Category.PARAMETER].sum()) == PARAMETERS
