"""A worker which imports packages touches no CUDA: it has no card yet, and its forks could have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vramcast.tracer.processes.fork_server import AskedForCard


def test_whether_there_is_a_card_is_answered_and_no_more_is_told(need: Callable[[str], Any]) -> None:
    """torchao asks while it is imported, and transformers imports it: the worker aborted, and every second job failed."""
    torch = need("torch")
    from vramcast.tracer.nullgpu import cuda_guard

    before = torch.cuda.is_available, torch.cuda.device_count
    release = cuda_guard.hold()
    try:
        assert torch.cuda.is_available()
        for question in (torch.cuda.device_count, torch.cuda.get_device_capability, torch.cuda.init):
            with pytest.raises(AskedForCard):
                question()
    finally:
        release()
    assert (torch.cuda.is_available, torch.cuda.device_count) == before
