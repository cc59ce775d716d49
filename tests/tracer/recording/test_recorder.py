"""The recorder: its facts about each block, and recording without side effects."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vramcast.hardware.cards import device
from vramcast.jobs.job import Command
from vramcast.tracer.format.trace import Action, Category, Phase, Trace
from vramcast.tracer.nullgpu.library.build import build
from vramcast.tracer.recording.profile import Contexts, ProfilePlace
from vramcast.tracer.recording.recorder import Recorder, annotate

Run = Callable[..., Any]
# The file's model `wide`: Linear(1024, 4096), ReLU, Linear(4096, 1024) on 64x1024 floats, mean squared error.
WEIGHT = 4 * 1024 * 4096
PARAMETERS = 2 * WEIGHT + 4 * 4096 + 4 * 1024


@pytest.fixture(scope="module")
def wide(trace: Run, tiny_models: Path) -> Any:
    return trace(target=f"{tiny_models}:wide", batch="64x1024", labels="64x1024", optimizer="adam").trace


def live_by_category(trace: Any, row: int) -> dict[str, int]:
    return {category.name: size for category, size in trace.by_category_at(row).items() if size}


def last_row(trace: Any, step: int, phase: Phase) -> int:
    return int(np.flatnonzero((trace.step == step) & (trace.phase == phase))[-1])


def test_each_block_has_operator(wide: Any) -> None:
    allocs = wide.action == Action.ALLOC
    assert (wide.op[allocs] >= 0).all()
    assert wide.header.get("warnings", []) == []
    assert not (wide.category[allocs] == Category.UNKNOWN).any()


def test_phases_follow_each_other_in_every_step(wide: Any) -> None:
    allocs = wide.action == Action.ALLOC
    for step in range(3):
        phases = wide.phase[allocs & (wide.step == step)].tolist()
        order = [phase for i, phase in enumerate(phases) if i == 0 or phases[i - 1] != phase]
        wanted = [Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
        assert [Phase(p) for p in order] == wanted


def test_records_requested_number_of_steps(wide: Any, trace: Run, tiny_models: Path) -> None:
    assert (int(wide.step.min()), int(wide.step.max())) == (-1, 2)
    five = trace(target=f"{tiny_models}:mlp", batch="8x16", steps=5)
    assert int(five.trace.step.max()) == 4
    assert five.steps == 5


def test_building_precedes_first_step(wide: Any) -> None:
    build_rows = wide.phase == Phase.BUILD
    assert set(wide.step[build_rows].tolist()) == {-1}
    assert int(wide.size_bytes[build_rows & (wide.action == Action.ALLOC)].sum()) == PARAMETERS


def test_parameters_gradients_and_state_have_true_sizes(wide: Any) -> None:
    held = live_by_category(wide, last_row(wide, 1, Phase.OPTIMIZER))
    # All four tensors are multiples of 512 B. Adam keeps two states; its step counters stay on the CPU.
    assert held["PARAMETER"] == PARAMETERS
    assert held["GRADIENT"] == PARAMETERS
    assert held["OPTIMIZER_STATE"] == 2 * PARAMETERS


def test_parameters_are_rounded_to_blocks(trace: Run, tiny_models: Path) -> None:
    small = trace(target=f"{tiny_models}:mlp", batch="8x16", labels="8:int64<4", optimizer="adam").trace
    blocks = 2048 + 512 + 512 + 512  # 4 * 16 * 32 = 2048, 128, 4 * 32 * 4 = 512, 16
    held = live_by_category(small, last_row(small, 1, Phase.OPTIMIZER))
    assert (held["PARAMETER"], held["GRADIENT"], held["OPTIMIZER_STATE"]) == (blocks, blocks, 2 * blocks)


def test_inputs_and_labels_are_inputs(wide: Any) -> None:
    row = last_row(wide, 1, Phase.DATA)
    assert live_by_category(wide, row)["INPUT"] >= 2 * 64 * 1024 * 4


def test_activations_live_into_backward(wide: Any) -> None:
    held = live_by_category(wide, last_row(wide, 1, Phase.FORWARD))
    hidden, output = 64 * 4096 * 4, 64 * 1024 * 4
    # ReLU of an nn.Sequential keeps its output, and the linear layer's output dies with its frame.
    assert hidden + output <= held["ACTIVATION"] <= 2 * hidden + output + 2048


@pytest.mark.usefixtures("keeps_workspaces")
def test_recognizes_workspaces(wide: Any) -> None:
    held = live_by_category(wide, len(wide) - 1)
    assert held["WORKSPACE"] >= 2 * 8_519_680


def test_categories_sum_to_live_bytes(wide: Any) -> None:
    peak, row = wide.peak_live()
    assert sum(wide.by_category_at(row).values()) == peak
    sizes = wide.rounded_bytes()
    for at in range(0, len(wide), 17):
        assert sum(wide.by_category_at(at).values()) == int(sizes[wide.live_at(at)].sum())


def test_live_peak_is_just_below_allocators(wide: Any) -> None:
    peaks = wide.header["peaks"]
    live, _ = wide.peak_live()
    assert peaks["requested"] <= live <= peaks["allocated"] <= peaks["reserved"]
    # Unsplit remainders of at most 1 MiB each.
    assert peaks["allocated"] - live <= 1024**2 * len(wide.live_at(wide.peak_live()[1]))


def test_names_modules_in_forward_and_backward(wide: Any) -> None:
    found: dict[Phase, set[str]] = {}
    for row in np.flatnonzero((wide.action == Action.ALLOC) & (wide.module >= 0)):
        found.setdefault(Phase(wide.phase[row]), set()).add(wide.modules[wide.module[row]])
    assert found[Phase.FORWARD] == {"0", "1", "2"}
    assert found[Phase.BACKWARD] == {"0", "1", "2"}


def test_weight_gradients_belong_to_module(wide: Any) -> None:
    rows = np.flatnonzero((wide.action == Action.ALLOC) & (wide.category == Category.GRADIENT) & (wide.step == 1))
    by_module = {}
    for row in rows:
        by_module.setdefault(wide.modules[wide.module[row]], []).append(int(wide.size_bytes[row]))
    assert {name: sorted(sizes) for name, sizes in by_module.items()} == {"0": [4 * 4096, WEIGHT], "2": [4 * 1024, WEIGHT]}


def test_operator_is_the_familiar_one(wide: Any) -> None:
    names = {wide.ops[i] for i in np.unique(wide.op[wide.op >= 0])}
    assert {"aten::addmm", "aten::mse_loss"} <= names
    assert not {"aten::empty", "aten::empty_strided"} & {
        wide.ops[wide.op[row]] for row in np.flatnonzero((wide.action == Action.ALLOC) & (wide.phase == Phase.FORWARD))
    }


def test_reallocates_freed_gradients_each_step(wide: Any) -> None:
    counts = [
        int(((wide.category == Category.GRADIENT) & (wide.action == Action.ALLOC) & (wide.step == step)).sum())
        for step in range(3)
    ]
    assert counts == [4, 4, 4]


@pytest.mark.parametrize("name", ["sgd", "adamw:fused=true", "adagrad"])
def test_finds_state_of_other_optimizers(trace: Run, tiny_models: Path, name: str) -> None:
    found = trace(target=f"{tiny_models}:wide", batch="64x1024", labels="64x1024", optimizer=name).trace
    held = live_by_category(found, last_row(found, 1, Phase.BACKWARD))
    sets = {"sgd": 0, "adamw:fused=true": 2, "adagrad": 1}[name]
    counters = 4 * 512 if "fused" in name else 0  # one on the device per parameter
    assert held.get("OPTIMIZER_STATE", 0) == sets * PARAMETERS + counters


def test_records_script_like_model(probe: Run, tmp_path: Path) -> None:
    _, result = probe(
        """
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(4):
            x = torch.randn(8, 1024).cuda()
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        """,
        steps=3,
    )
    assert result.steps == 3
    held = live_by_category(result.trace, len(result.trace) - 1)
    assert held["PARAMETER"] == held["GRADIENT"] == 4 * 1024 * 1024 + 4096


def test_clipping_belongs_to_optimizer_phase() -> None:
    # A place in the history is a count of requests and frees; a free has no place in the profile.
    rows = [
        (Action.ALLOC, 0, ProfilePlace("aten::addmm"), Phase.FORWARD),
        (Action.ALLOC, 1, ProfilePlace("aten::mm", backward=True), Phase.BACKWARD),
        (Action.FREE_REQUESTED, 0, None, Phase.BACKWARD),  # the activation
        (Action.ALLOC, 3, ProfilePlace("aten::linalg_vector_norm"), Phase.OPTIMIZER),  # the norm of the gradient, to clip it
        (Action.ALLOC, 4, ProfilePlace("aten::zeros_like"), Phase.OPTIMIZER),  # the optimizer's state
    ]
    columns = {"action": [row[0] for row in rows], "block": [row[1] for row in rows]}
    columns |= {"size_bytes": [512] * 5, "address": [512 * (1 + row[1]) for row in rows]}
    known = [(512 * (1 + block), place) for _, block, place, _ in rows if place is not None]
    found = annotate(
        Trace.build(columns),
        marks=[(0, "forward"), (1, "forward end"), (4, "step"), (5, "step end")],
        step_ends=[5],
        tags=[],
        contexts=Contexts.of(known),
        workspace_sizes=set(),
    )
    assert [Phase(phase) for phase in found.phase.tolist()] == [row[3] for row in rows]


# ------------------------------------------------------------------------------------------------ no side effects
LOOP = """
    import json, sys
    from pathlib import Path
    from vramcast.tracer.nullgpu.library.loader import NullGpu
    gpu = NullGpu(Path(sys.argv[1]))
    gpu.configure(sys.argv[2])
    import torch
    if sys.argv[3] != "off":
        from vramcast.tracer.recording.recorder import Recorder
        recorder = Recorder(profile=sys.argv[3] == "profile")
        recorder.start()
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = torch.nn.ModuleList([torch.nn.Conv2d(3, 256, 16, 16), torch.nn.Flatten(2), encoder]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = torch.randn(16, 3, 224, 224).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            tokens = model[1](model[0](x)).transpose(1, 2)
            loss = model[2](tokens).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    stats = torch.cuda.memory_stats()
    keys = ["allocated_bytes.all.peak", "reserved_bytes.all.peak", "requested_bytes.all.peak"]
    keys += ["allocation.all.allocated", "segment.all.peak"]
    if sys.argv[3] != "off":
        recorder.stop(header={})
    print(json.dumps([stats[key] for key in keys]))
"""


@pytest.mark.usefixtures("needs_null_gpu")
def test_recording_does_not_change_allocator() -> None:
    config = device("a100-40gb").to_config() + ";context_bytes=0"

    def start(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(LOOP), str(build()), config, how]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    found = {}
    running = {how: start(how) for how in ("off", "no profile", "profile")}
    for how, process in running.items():
        output, errors = process.communicate(timeout=120)
        assert output, errors
        found[how] = json.loads(output)
    assert found["off"] == found["no profile"] == found["profile"]
    assert found["off"][0] > 0


def test_trace_contains_emptied_cache(trace: Run, tmp_path: Path) -> None:
    script = tmp_path / "empties.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            from torch.cuda import empty_cache
            torch.cuda.empty_cache()  # does nothing: CUDA is not touched yet
            kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
            gone = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
            del gone
            empty_cache()
            again = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
            del again, kept
            torch.cuda.memory.empty_cache()
            torch.cuda.memory.empty_cache()
            """
        )
    )
    recorded = trace(command=Command((str(script),))).trace
    recorded_names = [Action(code).name for code in recorded.action.tolist()]
    one = ["SEGMENT_ALLOC", "ALLOC"]
    freed = ["FREE_REQUESTED", "FREE_COMPLETED"]
    assert recorded_names == [
        *(*one, *one, *freed, "EMPTY_CACHE", "SEGMENT_FREE"),
        *(*one, *freed, *freed, "EMPTY_CACHE", "EMPTY_CACHE", "SEGMENT_FREE", "SEGMENT_FREE"),
    ]
    blocks = recorded.block[recorded.action == Action.ALLOC]
    assert blocks.tolist() == np.flatnonzero(recorded.action == Action.ALLOC).tolist()
    assert recorded.header["marks_empty_cache"] is True


def test_pickled_hook_is_one_of_a_recorder_of_nothing() -> None:
    recorder = Recorder()
    recorder.course.stop("it was enough")
    loaded = pickle.loads(pickle.dumps(recorder._enter_module))
    assert loaded.__func__ is Recorder._enter_module
    assert not loaded.__self__.course.is_stopped


@pytest.mark.parametrize("steps", ["", "optimizer.step()"])
def test_gradients_need_no_optimizer(probe: Callable[..., Any], steps: str) -> None:
    makes = "optimizer = torch.optim.SGD(net.parameters(), 0.1)" if steps else "pass"
    _, result = probe(f"""
        net = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
        {makes}
        for _ in range(3):
            net(torch.zeros(8, 1024, device="cuda")).sum().backward()
            {steps}
            net.zero_grad()
    """)
    trace = result.trace
    assert trace.by_category_at(trace.peak_live()[1])[Category.GRADIENT] == 1024 * 1024 * 4
