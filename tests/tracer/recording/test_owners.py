"""Block attribution: tensors inside wrappers, and blocks without a known owner, by their time and lifetime."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vramcast.tracer.format.trace import Category, Phase
from vramcast.tracer.protocol.job_result import Result

torch = pytest.importorskip("torch")
owners = pytest.importorskip("vramcast.tracer.recording.owners")

from vramcast.tracer.recording.profile import ProfilePlace  # noqa: E402


class Scaled(torch.Tensor):  # type: ignore[name-defined, misc, unused-ignore]
    """A wrapper like torchao's: codes and scales, and no storage of its own."""

    @staticmethod
    def __new__(cls, codes: Any, scale: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        made.codes, made.scale = codes, scale
        return made

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise NotImplementedError

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None


def test_wrapper_holds_plain_tensors() -> None:
    codes, scale, other = torch.zeros(4, dtype=torch.int8), torch.ones(1), torch.zeros(2)
    outer = Scaled(codes, Scaled(scale, other))
    assert [id(t) for t in owners.plain([outer, "text", None, other])] == [id(t) for t in (codes, scale, other, other)]


def test_quantization_state_belongs_to_parameter() -> None:
    weight = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    absmax, code = torch.zeros(1), torch.zeros(16)
    weight.quant_state = SimpleNamespace(absmax=absmax, blocksize=64, state2=SimpleNamespace(code=code))
    assert [id(t) for t in owners.plain([weight])] == [id(t) for t in (weight, absmax, code)]


@pytest.mark.parametrize(
    ("phase", "freed_at", "category"),
    [
        (Phase.OPTIMIZER, 99, Category.OPTIMIZER_STATE),
        (Phase.OPTIMIZER, 12, Category.TEMPORARY),
        (Phase.BACKWARD, 21, Category.GRADIENT),
        (Phase.BACKWARD, 12, Category.TEMPORARY),
        (Phase.BUILD, 99, Category.PARAMETER),
        (Phase.BUILD, 25, Category.TEMPORARY),
        (Phase.FORWARD, 99, Category.TEMPORARY),
    ],
)
def test_unnamed_block_is_known_by_lifetime(phase: Phase, freed_at: int, category: Category) -> None:
    found = np.array([Category.PARAMETER, Category.TEMPORARY], np.uint8)
    marks = [(5, "forward"), (10, "step"), (15, "step end"), (20, "step"), (30, "step end")]
    owners.claim(
        found, np.array([512, 512]), np.array([1, 11]), np.array([99, freed_at]), np.array([Phase.BUILD, phase]), marks
    )
    assert found.tolist() == [Category.PARAMETER, category]


def test_gathered_blocks_are_parameters_and_buckets_gradients() -> None:
    asked = ["FSDP::all_gather_copy_out (layers.0)", "FSDP::all_gather_copy_out", "DistributedDataParallel.forward", "aten::mm"]
    made = [Category.ACTIVATION, Category.TEMPORARY, Category.ACTIVATION, Category.ACTIVATION]
    category = np.array(made, np.uint8)
    owners.of_ranks(category, lambda wanted: np.array([wanted(ProfilePlace(op)) for op in asked]))
    assert category.tolist() == [Category.PARAMETER, Category.PARAMETER, Category.GRADIENT, Category.ACTIVATION]


def test_averaged_weights_and_foreign_states_are_recognized(probe: Callable[..., tuple[Any, Result]]) -> None:
    _, result = probe(
        """
        torch.set_default_device("cuda")
        model = torch.nn.Linear(1024, 1024, bias=False)
        average = [p.detach().clone() for p in model.parameters()]
        kept = []
        class Elsewhere(torch.optim.Adam):
            def step(self, closure=None):
                super().step(closure)
                if not kept: kept.append(torch.zeros(3 << 20, dtype=torch.uint8))
        optimizer = Elsewhere(model.parameters(), fused=True)
        for _ in range(3):
            model(torch.ones(8, 1024)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    assert result.trace is not None
    _, row = result.trace.peak_live()
    sizes = result.trace.by_category_at(row)
    assert sizes[Category.PARAMETER] == 2 * (4 << 20)
    assert sizes[Category.OPTIMIZER_STATE] == 2 * (4 << 20) + (3 << 20) + 512
    assert sizes[Category.GRADIENT] == 4 << 20
