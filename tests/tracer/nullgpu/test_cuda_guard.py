"""A worker that imports packages does not touch CUDA: it has no card yet, and its forks could not use one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vramcast.tracer.processes.fork_server import AskedForCard


def test_reports_card_and_rejects_other_queries(need: Callable[[str], Any]) -> None:
    """Query the card like torchao, which transformers imports: the worker aborted, and every second job failed."""
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
