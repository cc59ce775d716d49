"""Large weights on the host, and results made from them, are allocated but never written; small ones have their values."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

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


def test_computes_small_weights_and_large_data(values: Values) -> None:
    with values:
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        weight.grad = torch.ones(4)
        optimizer.step()
        data = torch.ones(BIG_BYTES)
        data *= 2
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
