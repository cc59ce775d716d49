"""16-bit 3-D convolutions of a stack whose torch computes them without cuDNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vramcast.hardware.stack import Stack, parse
from vramcast.tracer.format.ledger import Code
from vramcast.tracer.format.trace import Action
from vramcast.tracer.nullgpu import client

Probe = Callable[..., Any]
COLUMNS_BYTES = 8 * 27 * 10 * 30 * 30 * 2  # each of 8 channels 27 times, for each element of the output, in 16 bits
SOURCE = """
def peak(dtype, kernel, memory_format, backward):
    convolution = torch.nn.Conv3d(8, 4, kernel, device="cuda", dtype=dtype).to(memory_format=memory_format)
    x = torch.empty(2, 8, 12, 32, 32, device="cuda", dtype=dtype).to(memory_format=memory_format).requires_grad_(backward)
    torch.mm(torch.empty(8, 8, device="cuda"), torch.empty(8, 8, device="cuda"))  # takes cuBLAS's workspace
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = convolution(x)
    if backward:
        y.sum().backward()
    return torch.cuda.max_memory_allocated() - before

note(
    bf16=peak(torch.bfloat16, 3, torch.contiguous_format, False),
    fp16=peak(torch.float16, 3, torch.contiguous_format, False),
    backward=peak(torch.bfloat16, 3, torch.contiguous_format, True),
    fp32=peak(torch.float32, 3, torch.contiguous_format, False),
    pointwise=peak(torch.bfloat16, 1, torch.contiguous_format, False),
    last=peak(torch.bfloat16, 3, torch.channels_last_3d, False),
    enabled=torch.backends.cudnn.enabled,
)
"""


def columns(result: Any) -> int:
    """Return the number of requests of the columns' size."""
    trace = result.trace
    return int((trace.size_bytes[trace.action == Action.ALLOC] == COLUMNS_BYTES).sum())


def test_torch_2_9_copies_input_into_columns(probe: Probe) -> None:
    said, result = probe(SOURCE, stack=parse("torch==2.9.1"))
    assert said["bf16"] >= COLUMNS_BYTES
    assert said["fp16"] == said["bf16"]
    assert columns(result) == 4  # forward thrice, backward once
    assert said["enabled"] is True


@pytest.mark.parametrize("stack", ["torch==2.8.0", "torch==2.9.1,cudnn==9.15.1", "torch==2.10.0"])
def test_other_stacks_leave_them_to_cudnn(probe: Probe, stack: str) -> None:
    said, result = probe(SOURCE, stack=parse(stack))
    assert columns(result) == 0
    assert said["bf16"] < COLUMNS_BYTES


def test_installed_torch_2_9_is_named_for_other_stacks(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "installed_stack", lambda: Stack("2.9.0", "12.8", "9.10.2"))
    _, result = probe(SOURCE, stack=parse("torch==2.8.0"))
    assert Code.OTHER_CONV3D in [entry.code for entry in result.ledger if entry.is_unknown]
