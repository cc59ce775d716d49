"""Large weights on the host, and results made from them, are allocated but never written; small ones have their values."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from vramcast.estimates.estimator import estimate_command
from vramcast.tracer.libraries.checkpoints import kept_apart
from vramcast.tracer.program.meta_model import BIG_BYTES
from vramcast.tracer.values.follower import Values
from vramcast.tracer.values.host_weights import HostWeights

BIG_ELEMENTS = 16 << 20  # 64 MiB of float32


class UnreadCard:
    """A card without reads."""

    def know(self, reads: list[bytes]) -> int:
        """Take no answer."""
        return 0


def resident_mib() -> float:
    """Return the resident memory of this process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.fixture
def values() -> Values:
    """Return a follower of a job with several ranks that does not touch a card."""
    return Values(UnreadCard(), on_card=lambda _: False, devices=(), host_weights=HostWeights())


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"weight_decay": 0.1, "amsgrad": True}])
def test_step_over_large_weights_takes_no_memory(options: dict[str, Any], values: Values) -> None:
    torch.optim.AdamW([torch.nn.Parameter(torch.ones(4))], **options)  # loads the modules that the first one imports
    before = resident_mib()
    with values:
        weight = torch.nn.Parameter(torch.empty(BIG_ELEMENTS))
        torch.nn.init.normal_(weight)
        weight.data.mul_(2)
        half = weight.detach().to(torch.bfloat16)
        optimizer = torch.optim.AdamW([weight], **options)
        for _ in range(2):
            weight.grad = torch.empty(BIG_ELEMENTS)
            torch.nn.utils.clip_grad_norm_([weight], 1.0)
            optimizer.step()
        copied = copy.deepcopy(weight)
    assert half.shape == copied.shape == weight.shape
    assert {name: state.shape for name, state in optimizer.state[weight].items()}["exp_avg"] == weight.shape
    assert resident_mib() - before < 48


def test_tensors_made_beside_weights_have_values(values: Values) -> None:
    with values:
        weight = torch.nn.Parameter(torch.empty(4, BIG_BYTES))
        assert weight.new_full((3,), 7).tolist() == [7.0] * 3
        assert weight.new_tensor([1, 2]).tolist() == [1.0, 2.0]
        assert torch.ones_like(weight[0, :3]).tolist() == [1.0] * 3
        assert weight[1].abs().mean().item() == 0.5  # drawn


def test_computes_small_weights_and_large_data(values: Values) -> None:
    with values:
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        weight.grad = torch.ones(4)
        optimizer.step()
        data = torch.ones(BIG_BYTES)
        data *= 2
        copied = copy.deepcopy(data), copy.deepcopy(torch.arange(BIG_BYTES))
    assert [int(one[-1]) for one in copied] == [2, BIG_BYTES - 1]
    assert weight.tolist() == [0.0] * 4
    assert data.sum().item() == 2 * BIG_BYTES


def test_reused_memory_of_weights_has_values(values: Values) -> None:
    with values:
        for _ in range(3):
            weight = torch.nn.Parameter(torch.empty(BIG_BYTES))
            weight.data.zero_()
            del weight
            data = torch.ones(BIG_BYTES)
            data += 1
            assert data.sum().item() == 2 * BIG_BYTES
            del data


@pytest.mark.parametrize("init", ["normal_", "uniform_", "kaiming_uniform_", "trunc_normal_"])
@pytest.mark.parametrize(("size", "dtype"), [(1 << 19, "float32"), ((1 << 18) + 5, "float32"), ((1 << 20) + 19, "bfloat16")])
def test_initializer_draws_as_many_random_numbers(init: str, size: int, dtype: str, values: Values) -> None:
    def after(weight: Any) -> list[float]:
        torch.manual_seed(1)
        options = (
            {"std": 0.02} if init == "trunc_normal_" else {}
        )  # with a wide one it draws again for values beyond its bounds
        getattr(torch.nn.init, init)(weight.data if init == "normal_" else weight, **options)
        return torch.rand(3).tolist()

    expected = after(torch.empty(1, size, dtype=getattr(torch, dtype)))
    with values:
        assert after(torch.nn.Parameter(torch.empty(1, size, dtype=getattr(torch, dtype)))) == expected


@pytest.mark.parametrize("is_safetensors", [True, False])
def test_checkpoint_and_its_casts_take_no_memory(is_safetensors: bool, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path, held = tmp_path / "weights", {"weight": torch.zeros(BIG_ELEMENTS // 1024, 1024, dtype=torch.bfloat16)}
    (safetensors.save_file if is_safetensors else torch.save)(held, path)
    weights = HostWeights()
    with weights.found(), Values(UnreadCard(), on_card=lambda _: False, devices=(), host_weights=weights):
        net = torch.nn.Linear(1024, BIG_ELEMENTS // 1024, bias=False)
        before = resident_mib()
        state = safetensors.load_file(path) if is_safetensors else torch.load(path)
        net.load_state_dict({name: value.float() for name, value in state.items()})
        copied = copy.deepcopy(net)
        assert resident_mib() - before < 16
    assert copied.weight.shape == (BIG_ELEMENTS // 1024, 1024)


READING = """
import torch
net = torch.nn.Linear(4096, 4096)
total = net.weight{part}.sum()
{read}
net.cuda()(torch.ones(8, 4096, device="cuda")).sum().backward()
torch.optim.SGD(net.parameters(), 0.1).step()
"""
BRANCH = 'kept = torch.empty(64 << 20, device="cuda") if total > 1e9 else None'
SIZE = 'kept = torch.empty(int(total.item() * 1e6), device="cuda")'


@pytest.mark.integration
@pytest.mark.parametrize("part", ["", "[0]", ".mean(1)"])
def test_value_read_from_host_weights_is_drawn(part: str, needs_null_gpu: None, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(READING.format(part=part, read=BRANCH))
    found = estimate_command(str(path), device="a100-40gb")
    assert (found.max_shape_reserved_bytes or 0) - found.reserved >= 256 << 20  # the other branch, too
    path.write_text(READING.format(part=part, read=SIZE))
    assert estimate_command(str(path), device="a100-40gb").verdict.value == "uncertain"


LOADING = """
import re
import torch
def anonymous_mib():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = anonymous_mib()
net = torch.nn.Linear(8192, 8192).double()
net.load_state_dict({name: value.float() for name, value in net.state_dict().items()})
grown = anonymous_mib() - before
net.cuda()(torch.ones(1, 8192, device="cuda", dtype=torch.double))
assert (grown > 500) == IS_PRECISE, grown
"""


@pytest.mark.integration
@pytest.mark.parametrize("is_precise", [False, True])
def test_weights_of_a_command_take_memory_only_with_precise_values(
    is_precise: bool, needs_null_gpu: None, tmp_path: Path
) -> None:
    path = tmp_path / "infer.py"
    path.write_text(LOADING.replace("IS_PRECISE", str(is_precise)))
    found = estimate_command(str(path), device="a100-40gb", precise_values=is_precise)
    assert (found.course.ended, found.allocated >= 8192 * 8192 * 8) == ("", True)


def test_loaded_checkpoint_outlives_the_next_one_at_its_path(tmp_path: Path, values: Values) -> None:
    path, weights = tmp_path / "last.pt", HostWeights()
    with kept_apart(), weights.found(), values:
        torch.save({"weight": torch.zeros(BIG_BYTES), "step": torch.tensor([7.0])}, path)
        loaded = torch.load(path)
        torch.save({"step": torch.tensor([8.0])}, path)
        assert loaded["step"].tolist() == [7.0]
        assert torch.load(path)["step"].tolist() == [8.0]


def test_data_in_a_mapped_file_have_values(tmp_path: Path) -> None:
    torch.save(torch.arange(BIG_BYTES, dtype=torch.float32), tmp_path / "data.pt")
    weights = HostWeights()
    with weights.found(), Values(UnreadCard(), on_card=lambda _: False, devices=(), host_weights=weights):
        data = torch.load(tmp_path / "data.pt")
        assert data[torch.tensor([3, 5])].tolist() == [3.0, 5.0]
        assert int((data * 2 > 10).sum()) == BIG_BYTES - 6


def test_modules_without_sizes_are_registered() -> None:
    with HostWeights().found():
        lazy = torch.nn.LazyLinear(8)
        lazy.register_parameter("scale", None)
    assert [*lazy.state_dict()] == ["weight", "bias"]
