"""Habits of older torch: kept casts, attention in 16 bits, and the choice among kernels of attention and of cuDNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vramcast.hardware.stack import parse
from vramcast.tracer.nullgpu.cudnn.libraries import installed_stack

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


SCORES_BYTES = 4 * 1024 * 1024  # of a head, in each byte of an element
ATTENTION = """
from torch.nn.attention import SDPBackend, sdpa_kernel

def peak(dtype):
    x = torch.empty(1, 4, 1024, 64, device="cuda", dtype=dtype)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with sdpa_kernel(SDPBackend.MATH):
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
    return torch.cuda.max_memory_allocated() - before

peak(torch.float32)  # takes cuBLAS's workspace
note(half=peak(torch.float16), single=peak(torch.float32))
"""


@pytest.mark.parametrize(("stack", "width"), [("torch==2.4.1", 2), ("torch==2.5.0", 4)])
def test_torch_before_2_5_computes_attention_in_16_bits(probe: Probe, stack: str, width: int) -> None:
    said, _ = probe(ATTENTION, stack=parse(stack))
    assert 2 * width * SCORES_BYTES <= said["half"] < 3 * width * SCORES_BYTES
    assert 8 * SCORES_BYTES <= said["single"] < 12 * SCORES_BYTES


CHOSEN = """
from torch.utils._python_dispatch import TorchDispatchMode
chosen = []

class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "attention" in str(func):
            chosen.append(str(func))
        return func(*args, **(kwargs or {}))

x = torch.empty(1, 4, 1024, 64, device="cuda", dtype=torch.bfloat16)
with Seen():
    torch.nn.functional.scaled_dot_product_attention(x, x, x)
note(chosen=chosen)
"""
FLASH, CUDNN = (f"aten._scaled_dot_product_{name}_attention.default" for name in ("flash", "cudnn"))
PREFERS = installed_stack().prefers_cudnn_attention  # an older torch cannot be asked to


@pytest.mark.parametrize(
    ("card", "stack", "first"),
    [
        ("h100", "torch==2.10.0", FLASH),
        ("h100", "torch==2.10.0,cudnn==9.15.1", CUDNN if PREFERS else FLASH),
        ("h100", "torch==2.11.0", CUDNN if PREFERS else FLASH),
        ("a100-40gb", "torch==2.11.0", FLASH),
    ],
)
def test_torch_prefers_cudnn_attention_by_stack(probe: Probe, card: str, stack: str, first: str) -> None:
    said, _ = probe(CHOSEN, device=card, stack=parse(stack))
    assert said["chosen"] == [first]


UNBATCHED = """
def peak(*sizes, backward=False):
    x = torch.empty(*sizes, device="cuda", dtype=torch.float16, requires_grad=backward)
    mask = torch.zeros(*sizes[:-1], sizes[-2], device="cuda", dtype=torch.float16)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
    if backward:
        out.sum().backward()
    assert out.shape == x.shape
    return torch.cuda.max_memory_allocated() - before

peak(4, 64, 64)  # takes cuBLAS's workspace
note(three=peak(4, 1024, 64), four=peak(1, 4, 1024, 64), trained=peak(4, 1024, 64, backward=True))
"""


@pytest.mark.parametrize(("stack", "is_fused"), [("torch==2.9.1", False), ("torch==2.11.0", False), ("torch==2.14.1", True)])
def test_torch_before_2_14_writes_all_scores_without_a_batch(probe: Probe, stack: str, *, is_fused: bool) -> None:
    said, _ = probe(UNBATCHED, stack=parse(stack))
    scores_bytes = 4 * 1024 * 1024 * 2
    assert said["four"] < scores_bytes
    assert (said["three"] < scores_bytes) is is_fused
    assert (said["trained"] < 2 * scores_bytes) is is_fused
