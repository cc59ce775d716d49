"""Results of collectives: a single rank keeps its data, and several ranks contribute equally."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from vramcast.tracer.protocol.job_result import Result  # noqa: E402
from vramcast.tracer.values.collectives import result_of  # noqa: E402

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
def test_counter_survives_reduction(probe: Callable[..., tuple[dict[str, Any], Result]]) -> None:
    notes, result = probe(SOURCE)
    assert notes == {"named": [{"rank": 7}], "count": 5.0, "gathered": [5.0], "flat": [[2, 1024]]}
    assert result.reads == 0


@pytest.mark.parametrize(
    ("name", "given", "operation", "expected"),
    [
        ("all_reduce", [1, 2], "SUM", [4, 8]),
        ("all_reduce", [1.0, 2.0], "AVG", [1, 2]),
        ("all_reduce", [1, 2], "PRODUCT", None),
        ("broadcast", [7], "SUM", [7]),
        ("all_gather_into_tensor", [1, 2], "SUM", [1, 2] * 4),
        ("reduce_scatter_tensor", [1, 2, 3, 4], "SUM", [12]),
        ("all_to_all_single", [4, 0, 4, 0, 4, 0, 4, 3], "SUM", [4, 1] * 4),  # tokens for two experts of each rank, evenly
        ("all_to_all_single", [0.0, 1.0, 2.0, 3.0], "SUM", [2.0] * 4),
    ],
)
def test_equal_ranks_contribute_equally(name: str, given: list[float], operation: str, expected: list[float] | None) -> None:
    operations: Any = torch.distributed.ReduceOp
    found = result_of(name, torch.tensor(given), 4, 2, getattr(operations, operation))
    assert (None if found is None else found.tolist()) == expected
