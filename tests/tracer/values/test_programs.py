"""Programs with memory that depends on values: the bound covers their memory with real values, or the answer has no bound."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.surveys import value_programs
from benchmarks.surveys.value_programs import PROGRAMS, TRUTH_MIB, WITHOUT_LARGEST
from tests.lanes import sampled
from vramcast.core.units import MIB
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training

SMALL, LARGE = 64, 1088  # rows of 1024 floats: below and above the limit for values worked out at once
# Each of these has a separate rule. The fake tracer does not support sparse tensors, and reports so.
ON_FAKE = ("allclose", "bincount", "masked_select")

MODELS = """
import torch

class Model(torch.nn.Module):
    def __init__(self, select):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.select = select
    def forward(self, x):
        return self.select(x).float().repeat(20) * self.scale

def none_of_the_drawn(): return Model(lambda x: x[x.detach() < -1])  # drawn numbers lie above 0
def counted(): return Model(lambda x: x.flatten()[:int((x.detach() < -1).sum())])
def other_way(): return Model(lambda x: x.flatten() if (x.detach() > 2).any() else x[:1].flatten())
def byte_flag(): return Model(lambda x: x.flatten() if (x.detach() > 2).any().byte().item() else x[:1].flatten())
def low(): return Model(lambda x: x.flatten() if x.detach().mean().item() < 1e-3 else x[:1].flatten())
def sized(): return Model(lambda x: x.flatten().repeat(int(x.detach().mean().item() * 10)))
def raises_the_other_way():
    def checked(x):
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        return x[:1].flatten()
    return Model(checked)
def too_much():
    def select(x):
        wide = x.detach().repeat(70, 1)  # 78 million elements
        return wide[wide < 1e9][: x.numel()]
    return Model(select)
def compared(x):
    return (x.detach().repeat(70, 1) > 2).sum()  # of 78 million elements
def at_least_one(): return Model(lambda x: x.flatten() / max(1, compared(x)))
def if_any(): return Model(lambda x: x.flatten() if compared(x) else x[:1].flatten())
def ends_either_way():
    def select(x):
        kept = []
        for _ in range(64):
            kept.append(x.flatten() * 1.0)
            if compared(x):
                break
            if not compared(x):
                break
        return torch.cat(kept)
    return Model(select)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "large_values.py"
    path.write_text(MODELS)
    return path


def estimate(target: str, rows: int, tracer: str) -> Estimate:
    batch, path = TensorSpec((rows, 1024)), tuple(sys.path)
    job = Job(device("a100-40gb"), target, batch=batch, training=Training(steps=1), search_path=path)
    return Estimator(tracer=tracer).uncorrected(job)


def covers(name: str, rows: int, tracer: str) -> bool:
    """Return whether the bound covers the truth, and is declared missing where there can be none."""
    found = estimate(f"{Path(value_programs.__file__)}:{name}", rows, tracer)
    is_open = rows == LARGE and name in WITHOUT_LARGEST
    truth_bytes = TRUTH_MIB[name][rows] * MIB + found.context.bytes
    return found.upper_bound >= truth_bytes and bool(found.unbounded_calls) == is_open


@pytest.mark.parametrize("name", sampled(list(PROGRAMS), 2))
def test_bound_covers_real_values(name: str, tracer: Callable[[], object]) -> None:
    assert [rows for rows in (SMALL, LARGE) if not covers(name, rows, "nullgpu")] == []


@pytest.mark.integration
@pytest.mark.parametrize("name", sampled(ON_FAKE, 4))
def test_bound_on_fake_tensors_covers_real_values(name: str) -> None:
    assert [rows for rows in (SMALL, LARGE) if not covers(name, rows, "fake")] == []


@pytest.mark.parametrize("name", ["none_of_the_drawn", "counted", "other_way", "byte_flag", "too_much"])
def test_shapes_from_large_values_have_ceiling(models: Path, name: str, auto_tracer: str) -> None:
    found = estimate(f"{models}:{name}", LARGE, auto_tracer)
    assert found.max_shape_reserved_bytes is not None
    assert found.upper_bound > found.max_shape_reserved_bytes > 20 * LARGE * 1024 * 4  # the repeated selection
    assert not found.unbounded_calls


@pytest.mark.parametrize("name", ["counted", "other_way", "byte_flag", "low"])
def test_numbers_read_by_host_have_ceiling(models: Path, name: str, auto_tracer: str) -> None:
    found = estimate(f"{models}:{name}", 512, auto_tracer)
    assert found.max_shape_reserved_bytes is not None
    assert found.upper_bound > found.max_shape_reserved_bytes > 20 * 512 * 1024 * 4  # the repeated selection
    assert not found.unbounded_calls


def test_size_from_float_has_no_bound(models: Path, auto_tracer: str) -> None:
    assert estimate(f"{models}:sized", 512, auto_tracer).unbounded_calls


def test_check_that_raises_has_no_other_branch(models: Path, auto_tracer: str) -> None:
    found = estimate(f"{models}:raises_the_other_way", LARGE, auto_tracer)
    assert found.max_shape_reserved_bytes == found.reserved
    assert not found.unbounded_calls


@pytest.mark.parametrize("name", ["at_least_one", "if_any"])
def test_branch_on_too_large_values_has_a_bound(models: Path, name: str, auto_tracer: str) -> None:
    found = estimate(f"{models}:{name}", LARGE, auto_tracer)
    assert not found.unbounded_calls
    assert found.upper_bound > 20 * LARGE * 1024 * 4  # the repeated selection


def test_loop_that_values_end_is_seen_to_its_own_end(models: Path, auto_tracer: str) -> None:
    found = estimate(f"{models}:ends_either_way", LARGE, auto_tracer)
    assert found.upper_bound > 64 * 20 * LARGE * 1024 * 4


LBFGS = """
import torch
net = torch.nn.Linear(2048, 2048, device="cuda")
x = torch.rand(64, 2048, device="cuda")
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=8, history_size=6)
def closure():
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    return loss
optimizer.step(closure)
"""


@pytest.mark.integration
def test_optimizer_that_values_end_keeps_its_whole_history(needs_null_gpu: None) -> None:
    found = Estimator(device="t4").command(["python", "-c", LBFGS], steps=1)
    assert found.unbounded_calls or found.upper_bound > 12 * 2048 * 2048 * 4  # two directions for each of 6


def test_promises_nothing_without_largest_shape(auto_tracer: str) -> None:
    found = estimate(f"{Path(value_programs.__file__)}:bincount", LARGE, auto_tracer)
    (name,) = found.unbounded_calls
    assert name.startswith("bincount (value_programs.py:")
    assert found.verdict.value == "uncertain"
    assert not found.fits()
    assert not any(found.to_dict()["fits"].values())
    assert f"no largest shape for {name}" in found.unknown
