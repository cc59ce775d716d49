"""Jobs of several ranks, of which two are traced: PyTorch's own process groups, with nobody on the other side."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.commands import job_of_command
from vramcast.devices import device
from vramcast.errors import CannotEstimate
from vramcast.tracer.job_result import Result
from vramcast.tracer.ledger import Code
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.trace import RANKS

HEAD = """
    import os, sys
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, world)

    def train(model):
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(8, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(8)]).cuda()
"""
DDP = "train(torch.nn.parallel.DistributedDataParallel(model))"
FSDP2 = """
    from torch.distributed.fsdp import fully_shard
    for layer in model:
        fully_shard(layer)
    train(fully_shard(model))
"""
OBJECTS = """
    def all_of(mine):
        objects = [None] * world
        dist.all_gather_object(objects, mine)
        return objects

    assert all_of({"rank": rank})[rank] == {"rank": rank}
    assert all_of("equal") == ["equal"] * world
    said = ["from the first"] if rank == 0 else [None]
    dist.broadcast_object_list(said, src=0)
    assert said == ["from the first"]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {one}" for one in range(world)] if rank == 0 else None, src=0)
    assert mine == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["shapes"], dst=world - 1)
    if rank == world - 1:
        received = [None]
        dist.recv_object_list(received, src=0)
        assert received == ["shapes"]
    host = dist.new_group(backend="gloo")
    dist.barrier(group=host)
    dist.monitored_barrier(group=host)
    dist.barrier()
    train(model)
"""


@pytest.fixture
def run(tracer: Callable[[], NullGpuTracer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Returns what comes of torchrun with a script's end and so many ranks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def traced(end: str, size: int = 8, **options: object) -> Result:
        (tmp_path / "train.py").write_text(textwrap.dedent(HEAD) + textwrap.dedent(end))
        machines = max(size // 8, 1)
        command = ("torchrun", f"--nnodes={machines}", f"--nproc_per_node={size // machines}", "train.py")
        return tracer().trace(job_of_command(command, device("h100"), until="steps", **options))  # type: ignore[arg-type]

    return traced


def _peaks(result: Result) -> list[list[int]]:
    assert result.status == "ok", result.message
    assert result.trace is not None
    found: list[list[int]] = result.trace.header[RANKS]["peaks"]
    return found


def test_ranks_of_ddp_take_as_much_as_one_alone(run: Callable[..., Result]) -> None:
    (first, *one), (last, *other) = _peaks(run(DDP))
    assert (first, last) == (0, 7)
    assert one == other
    alone = run(DDP, 1)
    assert alone.trace is not None
    assert alone.trace.header["peaks"]["allocated"] == one[0]


def test_shards_are_smaller_where_there_are_more_ranks(run: Callable[..., Result]) -> None:
    two, eight, many = (_peaks(run(FSDP2, size)) for size in (2, 8, 256))
    assert two[0][1] > eight[0][1] > many[0][1]
    for peaks in (two, eight, many):
        assert peaks[0][1:] == peaks[1][1:]  # the rows divide by each


def test_objects_come_from_who_has_said_them(run: Callable[..., Result]) -> None:
    result = run(OBJECTS, 4)
    assert len(_peaks(result)) == 2
    assert {"objects", "groups of Gloo"} <= {entry.name for entry in result.ledger if entry.code is Code.ABSENT}


def test_what_a_rank_that_is_not_traced_would_say_is_asked_for(run: Callable[..., Result]) -> None:
    with pytest.raises(CannotEstimate, match=r"recv_object_list from a rank .* --ranks.*rank 1 of 4"):
        run("rank and dist.recv_object_list([None], src=2)\ntrain(model)", 4, ranks=(0, 1))


def test_the_rank_which_raises_is_named(run: Callable[..., Result]) -> None:
    failed = run("if rank == 7: raise ValueError('no data')\ntrain(model)")  # after the model was on the card
    assert "raised ValueError: no data" in failed.ended
    assert failed.ended.endswith("(rank 7 of 8)")
