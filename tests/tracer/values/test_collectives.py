"""Collectives of a group of one rank leave what was there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vramcast.tracer.job_result import Result

SOURCE = """
import torch.distributed as dist
dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
count = torch.zeros((), device="cuda", dtype=torch.float64)
count += torch.tensor(5.0, device="cuda", dtype=torch.float64)
dist.all_reduce(count)
dist.broadcast(count, 0)
gathered = torch.empty(1, device="cuda", dtype=torch.float64)
dist.all_gather_into_tensor(gathered, count[None].clone())
shape = torch.tensor([2, 1024], device="cuda")[None]
flat = torch.empty(2, device="cuda", dtype=torch.int64)
dist.all_gather_into_tensor(flat, shape)  # as accelerate gathers: into one row
named = [None]
dist.all_gather_object(named, {"rank": 7})  # through lists of bytes
note(named=named, count=count.item(), gathered=gathered.tolist(), flat=flat.view(-1, 2).tolist())
"""


@pytest.mark.usefixtures("needs_null_gpu")
def test_a_counter_survives_its_reduction(probe: Callable[..., tuple[dict[str, Any], Result]]) -> None:
    notes, result = probe(SOURCE)
    assert notes == {"named": [{"rank": 7}], "count": 5.0, "gathered": [5.0], "flat": [[2, 1024]]}
    assert result.reads == 0
