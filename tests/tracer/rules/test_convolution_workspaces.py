"""Convolution workspaces without PyTorch's CUDA code: the same requests, plans and order as on the null GPU."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vramcast.core.cache import cache_folder
from vramcast.core.errors import NullGpuError, WorkerError
from vramcast.hardware.cards import device
from vramcast.hardware.stack import Stack, parse
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.simulator.replay import recorded_settings
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.ledger import CallHandling, Code, Entry
from vramcast.tracer.format.trace import Action, Category, Trace
from vramcast.tracer.nullgpu.cudnn import libraries as cudnn_libraries
from vramcast.tracer.nullgpu.cudnn.backend import EngineConfig, PlanSize
from vramcast.tracer.nullgpu.cudnn.client import OracleError, PlanDoesNotBuild
from vramcast.tracer.nullgpu.cudnn.libraries import choose, installed_stack
from vramcast.tracer.portable_tracers import FAKE
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.rules.convolution_workspaces import Convolution, ConvolutionWorkspaces, CudnnSettings, Workspace

A100 = device("a100-40gb")
CONV = Convolution((4, 16, 28, 28), (32, 16, 3, 3), (4, 32, 28, 28), (1, 1), (1, 1), (1, 1))
DEPTHWISE = Convolution((4, 64, 28, 28), (64, 1, 3, 3), (4, 64, 28, 28), (1, 1), (1, 1), (1, 1), groups=64)

MODELS = """
import torch
from torch import nn

class Layers(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)

def plain(): return Layers(nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 128, 1), nn.Conv2d(128, 64, 5, stride=2, padding=2))
def dilated(): return Layers(nn.Conv2d(16, 32, 3, padding=4, dilation=4), nn.Conv2d(32, 32, (3, 5), (1, 2), dilation=(2, 1)))
def grouped(): return Layers(nn.Conv2d(64, 128, 3, padding=1, groups=32), nn.Conv2d(128, 128, 3, stride=2, groups=4))
def depthwise(): return Layers(
    nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Conv2d(64, 128, 3, stride=2, groups=64), nn.Conv2d(128, 128, 7, groups=128))
def transposed(): return Layers(
    nn.ConvTranspose2d(64, 32, 2, stride=2), nn.ConvTranspose2d(32, 32, 3, 2, padding=1, output_padding=1, groups=2))
def flat(): return Layers(
    nn.Conv1d(80, 256, 3, padding=1), nn.Conv1d(256, 256, 31, stride=2, groups=256), nn.ConvTranspose1d(256, 64, 4, stride=2))
def deep(): return Layers(
    nn.Conv3d(3, 32, 3, padding=1), nn.Conv3d(32, 32, 3, 2, groups=4), nn.ConvTranspose3d(32, 16, 2, 2),
    nn.Conv3d(16, 32, 3, groups=16))

class Checkpointed(Layers):
    def forward(self, x):
        x.requires_grad_()
        return torch.utils.checkpoint.checkpoint(self.layers, x, use_reentrant=False)

def recomputed(): return Checkpointed(nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 128, 1))

class WithoutTf32(Layers):
    def forward(self, x):
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        return super().forward(x)

def exact(): return WithoutTf32(nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 128, 1), nn.Conv2d(128, 64, 5, 2, padding=2))

class Odd(nn.Module):  # input, weight and gradient have gaps, or begin in the middle of a block
    def __init__(self, groups=1, dimensions=2, transposed=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 1 if groups > 1 else 16, *(3,) * (dimensions - 1), 5).transpose(-1, -2))
        self.groups, self.scale = groups, nn.Parameter(torch.ones(1))
        self.run = getattr(nn.functional, f"conv{'_transpose' * transposed}{dimensions}d")

    def forward(self, x):
        x = x * self.scale
        y = self.run(x[..., ::2], self.weight, groups=self.groups) + self.run(x[1:], self.weight, groups=self.groups).mean()
        z = torch.cat([y, y.new_zeros(1).expand_as(y)], 1)
        return z * z

def odd(): return Odd()
def odd_transposed(): return Odd(transposed=True)
def odd_depthwise(): return Odd(groups=16)
def odd_depthwise_3d(): return Odd(groups=16, dimensions=3)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "convolutions.py"
    path.write_text(textwrap.dedent(MODELS))
    return path


@pytest.fixture
def needs_cudnn() -> None:
    try:
        choose(None)
    except NullGpuError as error:
        pytest.skip(str(error))


def history(trace: Trace) -> list[int]:
    """Return every request and free in order, frees with a minus."""
    sign = np.where(trace.action == Action.FREE_REQUESTED, -1, np.where(trace.action == Action.ALLOC, 1, 0))
    return [int(n) for n in (sign * trace.size_bytes)[sign != 0]]


def questions() -> set[str]:
    """Return all requests to cuDNN so far, by the null GPU or by the fake tracer."""
    with closing(sqlite3.connect(cache_folder() / "cudnn.sqlite")) as database:
        return {request for (request,) in database.execute("SELECT request FROM answer_3")}


IMAGES = "8x64x28x28"
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": ("plain", IMAGES, {}),
    "plain half": ("plain", IMAGES, {"precision": "fp16"}),
    "plain channels_last autocast": ("plain", IMAGES, {"channels_last": True, "precision": "amp-bf16", "device": "h100"}),
    "plain sm_120": ("plain", IMAGES, {"device": "rtx5090"}),
    "plain sm_120, engines that torch 2.14 avoids": ("plain", IMAGES, {"device": "rtx5090", "stack": "torch==2.11.0,cudnn=="}),
    "dilated": ("dilated", "8x16x28x28", {}),
    "grouped": ("grouped", IMAGES, {"device": "t4"}),
    "grouped channels_last": ("grouped", IMAGES, {"channels_last": True, "precision": "bf16"}),
    "depthwise": ("depthwise", IMAGES, {}),
    "depthwise half": ("depthwise", IMAGES, {"precision": "fp16"}),
    "depthwise channels_last": ("depthwise", IMAGES, {"channels_last": True}),
    "transposed": ("transposed", "8x64x14x14", {}),
    "1d": ("flat", "8x80x300", {}),
    "3d": ("deep", "2x3x16x32x32", {"precision": "fp16"}),
    "no tf32, deterministic": ("exact", IMAGES, {}),
    "cudnn.benchmark searches in each thread": ("recomputed", IMAGES, {"cudnn_benchmark": True}),
    "odd": ("odd", "3x16x15x21", {}),
    "odd transposed": ("odd_transposed", "3x16x15x21", {}),
    "odd depthwise": ("odd_depthwise", "3x16x15x21", {}),
    "odd depthwise 3d": ("odd_depthwise_3d", "3x16x7x7x21", {}),
}


@pytest.mark.usefixtures("needs_null_gpu", "needs_cudnn")
@pytest.mark.parametrize("name", CASES)
def test_convolution_matches_null_gpu(name: str, trace: Callable[..., Any], models: Path) -> None:
    factory, batch, options = CASES[name]
    options = dict(options)
    if stack := options.pop("stack", None):
        options["stack"] = parse(stack + (installed_stack().cudnn or ""))
    target, specification = f"{models}:{factory}", TensorSpec.parse(batch)
    there = trace(target=target, batch=specification, steps=2, limited=False, **options).trace
    asked = questions()
    card = device(options.get("device", A100.key))
    training = Training(steps=2, **{name: value for name, value in options.items() if name not in ("device", "stack")})
    job = Job(card, target, batch=specification, training=training, search_path=tuple(sys.path), stack=options.get("stack"))
    here = FAKE.trace(job, timeout_s=120)
    assert here.trace is not None
    sizes, theirs = history(here.trace), history(there)
    if options.get("precision", "").startswith("amp"):  # the cache of weight casts is emptied in the order of a hash table
        assert [n for n in sizes if n > 0] == [n for n in theirs if n > 0]
    else:
        assert sizes == theirs
    assert [entry for entry in here.ledger if entry.kind == "assumed"] == []
    assert questions() == asked


@pytest.mark.usefixtures("needs_null_gpu", "needs_cudnn")
def test_marks_workspaces_and_search_empties_cache(models: Path) -> None:
    job = Job(
        A100,
        target=f"{models}:plain",
        batch=TensorSpec.parse(IMAGES),
        training=Training(steps=2, cudnn_benchmark=True),
        search_path=tuple(sys.path),
    )
    trace = FAKE.trace(job, timeout_s=120).trace
    assert trace is not None
    workspaces = (trace.category == Category.WORKSPACE) & (trace.action == Action.ALLOC)
    assert workspaces.any()
    assert all("conv" in trace.ops[i] for i in trace.op[workspaces])
    emptied = (trace.action == Action.EMPTY_CACHE).nonzero()[0]
    assert len(emptied) == 8  # three convolutions, three operations each; the input of the first needs no gradient
    assert trace.step[emptied].max() == 0
    assert trace.where(lambda operator: operator.is_convolution)[emptied].all()
    assert set(np.flatnonzero(trace.is_search())) <= set(np.flatnonzero(workspaces))
    assert set(trace.block[emptied - 1]) - {-1} >= set(np.flatnonzero(trace.is_search())) > set()


@pytest.mark.usefixtures("needs_cudnn")
def test_both_tracers_see_the_same_searches(
    trace: Callable[..., Result], make_job: Callable[..., Job], models: Path
) -> None:  # fmt: skip
    """Each search empties the cache, also if it finds nothing to release."""
    job = {"target": f"{models}:plain", "batch": IMAGES, "cudnn_benchmark": True, "search_path": tuple(sys.path)}
    recorded, faked = trace(**job).trace, FAKE.trace(make_job(**job), timeout_s=120).trace
    assert recorded is not None
    assert faked is not None
    for found in (recorded, faked):
        assert np.count_nonzero(found.action == Action.EMPTY_CACHE) == 8
    assert sorted(recorded.size_bytes[recorded.is_search()]) == sorted(faked.size_bytes[faked.is_search()])


@pytest.mark.usefixtures("needs_cudnn")
def test_replay_of_search_equals_record(trace: Callable[..., Result], models: Path) -> None:
    job = {"batch": "64x64x112x112", "mode": "infer", "device": "rtx4090", "cudnn_benchmark": True}
    recorded = trace(target=f"{models}:plain", **job).trace
    assert recorded is not None
    assert recorded.is_search().sum() == np.count_nonzero(recorded.action == Action.EMPTY_CACHE) == 3
    assert simulate(recorded, recorded_settings(recorded)).reserved == recorded.header["peaks"]["reserved"]
    rest = recorded.without_blocks(np.flatnonzero(recorded.is_search()))
    assert simulate(rest, recorded_settings(recorded)).reserved < recorded.header["peaks"]["reserved"]


def test_graph_equals_pytorch_graph() -> None:
    def tensor(sizes: str, strides: str, letter: str, alignment: int = 32) -> str:
        return f"17{{901=1:0;902=3:{sizes};903=3:{strides};906=3:{ord(letter)};900=3:{alignment};}}"

    convolution = Convolution((4, 16, 31, 31), (32, 16, 3, 3), (4, 32, 15, 15), (2, 2), (0, 0), (1, 1), offsets_bytes=(4, 0, 0))
    numbers = "1{100=1:0;101=7:1;106=3:2;105=3:0,0;104=3:0,0;102=3:1,1;103=3:2,2;}"
    x, w = tensor("4,16,31,31", "15376,961,31,1", "x", 8), tensor("32,16,3,3", "144,9,3,1", "w")
    y = tensor("4,32,15,15", "7200,225,15,1", "y")
    of_tensors = f"704=15:[{x}];703=15:[{w}];705=15:[{y}];702=15:[{numbers}];700=4:1065353216;701=4:0;"
    assert convolution.graph("forward") == f"15{{801=15:[10{{{of_tensors}}}];}}"


def test_transposed_convolution_is_gradient_graph() -> None:
    other = replace(CONV, input=CONV.output, output=CONV.input, transposed=True)
    for operation in ("forward", "backward_data", "backward_filter"):
        assert other.graph(operation) == CONV.graph(operation)


@pytest.mark.parametrize(
    ("offset_bytes", "alignment"), [(0, 32), (512, 32), (16, 32), (48, 32), (8, 16), (24, 16), (4, 8), (2, 4), (1, 2)]
)
def test_alignments_match_pytorch(offset_bytes: int, alignment: int) -> None:
    graph = replace(CONV, offsets_bytes=(offset_bytes, 0, 0)).graph("backward_filter")
    assert re.findall(r"900=3:(\d+);", graph) == [str(alignment), "32", "32"]
    # The gradient of the input is a result here: it begins at a separate block.
    assert replace(CONV, offsets_bytes=(offset_bytes, 0, 0)).graph("backward_data") == CONV.graph("backward_data")


@pytest.mark.parametrize(
    ("changes", "uses_cudnn"),
    [
        ({}, False),
        ({"channels_last": True}, True),
        ({"dtype": "float16"}, True),
        ({"dtype": "bfloat16"}, False),
        ({"dtype": "float16", "dilation": (2, 2)}, False),
        ({"dtype": "float16", "stride": (2, 2)}, False),
        ({"dtype": "float16", "stride": (2, 2), "input": (1, 64, 28, 28)}, True),
        ({"dtype": "float16", "stride": (1, 2)}, False),
        ({"dtype": "float16", "input": (4, 64, 28, 6)}, False),
        ({"dtype": "float16", "weight": (64, 1, 3, 5)}, False),
        ({"dtype": "float16", "weight": (64, 1, 1, 31), "input": (4, 64, 1, 28)}, True),
        ({"transposed": True}, True),
        ({"weight": (96, 1, 3, 3)}, True),
        ({"input": (1 << 20, 64, 28, 28)}, True),
    ],
)
def test_selects_cudnn_for_depthwise_like_pytorch(changes: dict[str, Any], uses_cudnn: bool) -> None:
    convolution = replace(DEPTHWISE, **changes)
    assert convolution.uses_cudnn == uses_cudnn
    assert convolution.uses_depthwise_kernel == (not uses_cudnn)


class Oracle:
    """cuDNN's answers from a table: by mode, (numerical notes, workspace or None if the plan does not build)."""

    def __init__(self, table: dict[int, list[tuple[tuple[int, ...], int | None]]]) -> None:
        self.table = table
        self.asked = 0
        self.failure: Exception | None = None
        self.is_alive = True
        self.was_killed = False
        self.limit_bytes = 0
        self.withheld = 0

    def heuristics(self, mode: int, graph: str) -> list[EngineConfig]:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return [EngineConfig(0, notes, ()) for notes, _ in self.table.get(mode, [])]

    def plan(self, mode: int, index: int, graph: str) -> PlanSize:
        size = self.table[mode][index][1]
        if size is None:
            raise PlanDoesNotBuild(3000)
        return PlanSize(size, self.limit_bytes, self.withheld)


TENSOR_CORE, DOWN_CONVERTED, BY_CHANCE = (0,), (1,), (4,)
SUGGESTED = {0: [(DOWN_CONVERTED, 1), (TENSOR_CORE, None), (TENSOR_CORE, 2), (BY_CHANCE, 3), ((), 4)], 2: [((), 9)]}


def answering(table: dict[int, list[tuple[tuple[int, ...], int | None]]]) -> tuple[ConvolutionWorkspaces, Oracle]:
    workspaces = ConvolutionWorkspaces(A100, A100.total_bytes)
    oracle = Oracle(table)
    workspaces._oracle = oracle  # type: ignore[assignment]
    return workspaces, oracle


@pytest.mark.parametrize(
    ("dtype", "settings", "size_bytes"),
    [
        ("float32", CudnnSettings(), 2),
        ("float32", CudnnSettings(allow_tf32=False), 3),
        ("float32", CudnnSettings(allow_tf32=False, deterministic=True), 4),
        ("float16", CudnnSettings(allow_tf32=False), 2),
        ("bfloat16", CudnnSettings(deterministic=True), 2),
    ],
)
def test_takes_first_allowed_plan_that_builds(dtype: str, settings: CudnnSettings, size_bytes: int) -> None:
    workspaces, _ = answering(SUGGESTED)
    assert workspaces.ask(replace(CONV, dtype=dtype), "forward", settings, thread=0) == Workspace(size_bytes)


CONV3D = Convolution((2, 8, 6, 9, 9), (4, 8, 3, 3, 3), (2, 4, 4, 7, 7), (1,) * 3, (0,) * 3, (1,) * 3, dtype="bfloat16")
COLUMNS = Workspace(8 * 27 * 4 * 7 * 7 * 2)  # of one sample, in bfloat16
CUDNN = Workspace(2)


@pytest.mark.parametrize(
    ("torch", "convolution", "expected"),
    [
        ("2.9.1", CONV3D, COLUMNS),
        ("2.9.0", replace(CONV3D, dtype="float16"), COLUMNS),
        ("2.8.0", CONV3D, CUDNN),
        ("2.10.0", CONV3D, CUDNN),
        ("2.9.1", replace(CONV3D, dtype="float32"), CUDNN),
        ("2.9.1", replace(CONV3D, channels_last=True), CUDNN),
        ("2.9.1", replace(CONV3D, weight=(4, 8, 1, 1, 1)), CUDNN),
        ("2.9.1", replace(CONV, dtype="bfloat16"), CUDNN),
    ],
)
def test_torch_2_9_copies_columns_in_3d(torch: str, convolution: Convolution, expected: Workspace) -> None:
    workspaces = ConvolutionWorkspaces(A100, A100.total_bytes, parse(f"torch=={torch}"))
    workspaces._oracle = Oracle(SUGGESTED)  # type: ignore[assignment]
    assert workspaces.ask(convolution, "forward", CudnnSettings(), thread=0) == expected


def test_torch_2_9_has_unknown_workspaces_in_grouped_3d() -> None:
    workspaces = ConvolutionWorkspaces(A100, A100.total_bytes, parse("torch==2.9.1"))
    for other in (replace(CONV3D, groups=2, weight=(4, 4, 3, 3, 3)), replace(CONV3D, transposed=True)):
        assert workspaces.ask(other, "forward", CudnnSettings(), thread=0) is None
    [entry] = workspaces.ledger()
    assert (entry.code, entry.hits, entry.is_unknown) == (Code.NO_WORKSPACES, 2, True)


def test_fallback_list_follows_suggestions() -> None:
    workspaces, _ = answering({0: [((), None)], 2: [((), 9)]})
    assert workspaces.ask(CONV, "forward", CudnnSettings(), thread=0) == Workspace(9)


def test_search_takes_largest_plan_per_thread() -> None:
    workspaces, _ = answering(SUGGESTED)
    settings = CudnnSettings(benchmark=True)
    found = [workspaces.ask(CONV, "forward", settings, thread=thread) for thread in (0, 0, 1, 1)]
    assert found == [Workspace(2, search_bytes=9), Workspace(2), Workspace(2, search_bytes=9), Workspace(2)]
    assert workspaces.sizes == {2, 9}


def test_ledger_counts_cublaslt_limits() -> None:
    workspaces, oracle = answering(SUGGESTED)
    oracle.limit_bytes = 128
    for _ in range(2):
        found = workspaces.ask(CONV, "forward", CudnnSettings(benchmark=True), thread=0)
        assert found is not None
        assert found.cublaslt_limit_bytes == 128
    assert workspaces.ledger() == [Entry.of(CallHandling.BOUNDED, Code.CUBLASLT_WORKSPACE, 2, 256)]


def test_ledger_counts_withheld_engines() -> None:
    workspaces, oracle = answering(SUGGESTED)
    oracle.withheld = 15
    for _ in range(2):
        workspaces.ask(CONV, "forward", CudnnSettings(), thread=0)
    assert workspaces.ledger() == [Entry.of(CallHandling.ASSUMED, Code.WITHHELD_ENGINES, 2)]


def test_sends_equal_requests_once() -> None:
    workspaces, oracle = answering(SUGGESTED)
    for _ in range(3):
        workspaces.ask(replace(CONV), "forward", CudnnSettings(), thread=0)
    assert oracle.asked == 1
    workspaces.ask(CONV, "backward_data", CudnnSettings(), thread=0)
    assert oracle.asked == 2


def test_native_kernels_and_empty_tensors_skip_oracle() -> None:
    workspaces, oracle = answering(SUGGESTED)
    assert workspaces.ask(DEPTHWISE, "forward", CudnnSettings(), thread=0) == Workspace(0)
    assert workspaces.ask(replace(CONV, input=(0, 16, 28, 28)), "forward", CudnnSettings(), thread=0) == Workspace(0)
    assert workspaces.ledger() == []
    assert workspaces.ask(CONV, "forward", CudnnSettings(enabled=False), thread=0) is None
    assert [entry.words for entry in workspaces.ledger()] == [
        "convolution workspaces: 0 (PyTorch's own kernels run instead of cuDNN's)"
    ]
    assert oracle.asked == 0


def test_names_refusal_and_drops_dead_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    workspaces, oracle = answering({})
    monkeypatch.setattr(workspaces, "_open", lambda: None if workspaces._silence else oracle)
    assert workspaces.ask(CONV, "forward", CudnnSettings(), thread=0) is None
    oracle.failure, oracle.is_alive = OracleError("it ended"), False
    for operation in ("backward_data", "backward_filter"):
        assert workspaces.ask(CONV, operation, CudnnSettings(), thread=0) is None
    assert oracle.asked == 2 + 2  # the first request takes both lists, the second is repeated with a new oracle
    assert {(entry.words, entry.hits) for entry in workspaces.ledger()} == {
        ("convolution workspaces: 0 (cuDNN has no engine for a convolution)", 1),
        ("convolution workspaces: 0 (it ended)", 2),
    }


def test_raises_if_oracle_is_killed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    workspaces, oracle = answering({})
    monkeypatch.setattr(workspaces, "_open", lambda: oracle)
    oracle.failure, oracle.is_alive, oracle.was_killed = OracleError("it ended"), False, True
    with pytest.raises(WorkerError, match="killed twice"):
        workspaces.ask(CONV, "forward", CudnnSettings(), thread=0)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delenv("VRAMCAST_CUDNN_DIR", raising=False)


def named(workspaces: ConvolutionWorkspaces) -> str:
    with workspaces:
        assert workspaces.ask(CONV, "forward", CudnnSettings(), thread=0) is None
    (entry,) = workspaces.ledger()
    assert (entry.kind, entry.hits) == ("assumed", 1)
    return entry.words


@pytest.mark.usefixtures("nothing_installed")
def test_names_missing_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_libraries.platform, "system", lambda: "Linux")
    assert "no cuDNN is installed here: run vramcast doctor --get-cudnn 9.12.0" in named(
        ConvolutionWorkspaces(A100, A100.total_bytes)
    )


def test_names_unsupported_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_libraries.platform, "system", lambda: "Darwin")
    assert "only on Linux, this is Darwin" in named(ConvolutionWorkspaces(A100, A100.total_bytes))


@pytest.mark.skipif(sys.platform != "linux", reason="cuDNN answers only on Linux")
def test_names_missing_folder_and_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VRAMCAST_CUDNN_DIR", str(tmp_path / "none"))
    assert f"{tmp_path / 'none'} is not a folder" in named(ConvolutionWorkspaces(A100, A100.total_bytes))
    monkeypatch.setenv("VRAMCAST_CUDNN_DIR", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "No C compiler found (no-such-compiler)" in named(ConvolutionWorkspaces(A100, A100.total_bytes))


@pytest.mark.integration
@pytest.mark.usefixtures("needs_cudnn")
def test_reports_other_cudnn_than_torchs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "of-unknown-version" / "nvidia" / "cudnn" / "lib"
    other.parent.mkdir(parents=True)
    other.symlink_to(choose(None).library.folder)
    monkeypatch.setenv("VRAMCAST_CUDNN_DIR", str(other))
    assert ledger_of_one(None) == ["convolution workspaces of another cuDNN version"]


@pytest.mark.integration
@pytest.mark.usefixtures("needs_cudnn")
def test_uses_cudnn_of_job_stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VRAMCAST_CUDNN_DIR", raising=False)
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    own = choose(None).library
    stack = Stack(cudnn="9.17.0")
    assert ledger_of_one(stack) == ["convolution workspaces of another cuDNN version"]
    wanted = tmp_path / "cudnn" / "9.17.0.5-cu13" / "nvidia" / "cudnn" / "lib"  # stands for a fetched one
    wanted.parent.mkdir(parents=True)
    wanted.symlink_to(own.folder)
    assert choose(stack).library.folder == wanted
    assert ledger_of_one(stack) == []


def ledger_of_one(stack: Stack | None) -> list[str]:
    """Return the ledger after one convolution that cuDNN answered."""
    with ConvolutionWorkspaces(A100, A100.total_bytes, stack) as workspaces:
        found = workspaces.ask(CONV, "backward_filter", CudnnSettings(), thread=0)
    assert found is not None
    assert found.size_bytes >= 0
    return [entry.words for entry in workspaces.ledger()]
