"""Casts of weights in inference mode, which torch before 2.11 keeps as long as autocast lasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vramcast.hardware.stack import parse

Probe = Callable[..., Any]
WEIGHTS_BYTES = 4 * 1024 * 1024 * 2  # of four layers, in 16 bits
SOURCE = """
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)]).cuda()
x = torch.empty(1, 1024, device="cuda")

@torch.inference_mode()
def in_function():
    with torch.autocast("cuda"):
        model(x)
        return torch.cuda.memory_allocated()

with torch.inference_mode(), torch.autocast("cuda"):
    model(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
after = torch.cuda.memory_allocated()
with torch.inference_mode(), torch.inference_mode(False):
    trained = model(x).requires_grad
note(kept=before - after, in_function=in_function() - after, trained=trained, grad=torch.is_grad_enabled())
"""


@pytest.mark.parametrize(("stack", "kept_bytes"), [("torch==2.10.0", WEIGHTS_BYTES), ("torch==2.11.0", 0)])
def test_torch_before_2_11_keeps_casts_in_inference_mode(probe: Probe, stack: str, kept_bytes: int) -> None:
    said, _ = probe(SOURCE, stack=parse(stack))
    assert said["kept"] == kept_bytes
    assert kept_bytes <= said["in_function"] <= kept_bytes + 4096
    assert said["trained"]
    assert said["grad"]
