"""Jobs of several ranks, two of them traced: PyTorch's own process groups without any peers."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.core.errors import CannotEstimate, OtherAllocator
from vramcast.hardware.cards import device
from vramcast.jobs.text import JobText
from vramcast.tracer.format.ledger import CallHandling, Code
from vramcast.tracer.format.nccl_calls import calls_in
from vramcast.tracer.format.trace import RANKS
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.protocol.job_result import Result

HEAD = """
    import os, sys
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=BOUND)
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
OFFLOADED = """
    from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, FullyShardedDataParallel, fully_shard

    def layers():
        return [torch.nn.Linear(8192, 8192, bias=False) for _ in range(4)]

    def train(model):
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(8, 8192, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    first = torch.nn.Sequential(*layers())
    for layer in first:
        fully_shard(layer, offload_policy=CPUOffloadPolicy())
    train(fully_shard(first, offload_policy=CPUOffloadPolicy()))
    options = {"cpu_offload": CPUOffload(offload_params=True), "device_id": torch.cuda.current_device()}
    second = torch.nn.Sequential(*[FullyShardedDataParallel(layer, **options) for layer in layers()])
    train(FullyShardedDataParallel(second, **options))
"""
# Groups are parts of the first communicator if that is bound to a card.
GROUPS = """
    parts = [dist.new_group(list(range(4))), dist.new_group(list(range(4, 8))), dist.new_group([0, 7])]
    dist.all_reduce(torch.ones(4, device="cuda"), group=parts[rank // 4])
    train(torch.nn.parallel.DistributedDataParallel(model))
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


PIPELINE = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("pp", "dp"))
    place, group = mesh.get_local_rank("pp"), mesh.get_group("pp")
    parts = [torch.nn.Linear(512, 2048 if stage == 3 else 512).cuda() for stage in (place, place + 2)]
    stages = [
        PipelineStage(part, place + 2 * turn, 4, torch.device("cuda"), group=group) for turn, part in enumerate(parts)
    ]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=lambda out, wanted: (out - wanted).pow(2).mean())
    optimizer = torch.optim.AdamW([one for part in parts for one in part.parameters()])
    for _ in range(3):
        if place == 0:
            schedule.step(torch.randn(16, 512, device="cuda"))
        else:
            schedule.step(target=torch.randn(16, 2048, device="cuda"), losses=[])
        optimizer.step()
        optimizer.zero_grad()
"""
VALUES = """
    import torch.distributed._functional_collectives as funcol

    def counts(*numbers):
        return torch.tensor(numbers, device="cuda")

    total, most, all_of, sent = counts(1, 2), counts(3.0), torch.empty(2 * world, device="cuda"), counts(*range(2 * world))
    dist.all_reduce(total)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_gather_into_tensor(all_of, counts(5.0, 6.0))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    assert (total.tolist(), most.item()) == ([world, 2 * world], 3.0)
    assert all_of.tolist() == [5.0, 6.0] * world
    assert sum(received.tolist()) == sum(sent.tolist())  # tokens for experts come evenly from all ranks

    group = dist.group.WORLD
    reduced = funcol.all_reduce(counts(1, 2), "sum", group)
    for reduced in (reduced, funcol.wait_tensor(reduced)):
        assert reduced.tolist() == (reduced + 0).cpu().tolist() == [world, 2 * world]
    assert funcol.all_gather_tensor(counts(5, 6), 0, group).view(world, 2).sum(1).tolist() == [11] * world
    assert sum(funcol.all_to_all_single(sent, None, None, group).tolist()) == sum(sent.tolist())
    assert funcol.reduce_scatter_tensor(sent, "sum", 0, group).tolist() == [2 * rank * world, (2 * rank + 1) * world]

    @torch.compile(backend="eager", fullgraph=True)
    def summed(x):
        y = x * 2
        dist.all_reduce(y)  # dynamo knows it, and its replacement
        return y

    assert summed(counts(1.0, 2.0)).shape == (2,)

    mine = counts(10 + rank, 7)
    dist.broadcast(mine, src=0)
    assert mine.tolist() == [10, 7]  # the message of rank 0
    if rank == 0:
        dist.send(counts(4, 256), world - 1)
    if rank == world - 1:
        shape = counts(0, 0)
        dist.recv(shape, 0)
        assert shape.tolist() == [4, 256]
    unknown = counts(7.5, 7.5) + 0
    dist.broadcast(unknown, src=1)
    assert rank == 1 or unknown.tolist() != [7.5, 7.5]  # not the old contents
    model.buffers = []  # as in Megatron's DistributedDataParallel
    train(model)
"""
CHECKPOINTS = """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    weight = torch.zeros(8, device="cuda")
    for step in range(2):
        weight += 1
        if step == 0:
            dcp.save({"model": model.state_dict(), "step": weight}, checkpoint_id="old")
        else:
            dcp.async_save({"model": model.state_dict()}, checkpoint_id="new").result()
        train(model)
    dcp.load({"step": weight}, checkpoint_id="old")
"""
WAITS = """
    import os, time
    from vramcast.tracer.program import cutoff as stopping

    stopping._IDLE_S = 1.5  # keeps the test short
    while not os.path.exists("made by rank 1"):
        time.sleep(0.1)
"""
SPAWNED = """
    import os
    import torch
    import torch.distributed as dist

    def rank_of(rank, world):
        dist.init_process_group("nccl", init_method="tcp://localhost:29501", rank=rank, world_size=world)
        torch.cuda.set_device(rank)
        width = 512 if rank < world - 1 else 1024
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(width, width, device="cuda"))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(8, width, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    if __name__ == "__main__":
        torch.multiprocessing.spawn(rank_of, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
"""


@pytest.fixture
def run(tracer: Callable[[], NullGpuTracer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that traces torchrun with the end of a script and this number of ranks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def traced(end: str, size: int = 8, command: tuple[str, ...] = (), *, bound: bool = False, **options: object) -> Result:
        head = HEAD.replace("BOUND", 'torch.device("cuda", int(os.environ["LOCAL_RANK"]))' if bound else "None")
        (tmp_path / "train.py").write_text(textwrap.dedent(head) + textwrap.dedent(end))
        machines = max(size // 8, 1)
        command = command or ("torchrun", f"--nnodes={machines}", f"--nproc_per_node={size // machines}", "train.py")
        return tracer().trace(JobText(command=command, until="steps", **options).job(device("h100")))  # type: ignore[arg-type]

    return traced


def _peaks(result: Result) -> list[list[int]]:
    assert result.status == "ok", result.message
    assert result.trace is not None
    found: list[list[int]] = result.trace.header[RANKS]["peaks"]
    return found


def test_ddp_ranks_match_single_rank(run: Callable[..., Result]) -> None:
    (first, *one), (last, *other) = _peaks(run(DDP))
    assert (first, last) == (0, 7)
    assert one == other
    alone = run(DDP, 1)
    assert alone.trace is not None
    assert alone.trace.header["peaks"]["allocated"] == one[0]


def test_more_ranks_give_smaller_shards(run: Callable[..., Result]) -> None:
    two, eight, many = (_peaks(run(FSDP2, size)) for size in (2, 8, 256))
    assert two[0][1] > eight[0][1] > many[0][1]
    for peaks in (two, eight, many):
        assert peaks[0][1:] == peaks[1][1:]  # the number of rows is a multiple of each


def test_offloaded_shards_take_no_host_memory(run: Callable[..., Result]) -> None:
    result = run(OFFLOADED, 2)  # each model has 0.5 GiB per rank: half of its parameters, 1.5 GiB with their states
    assert min(peaks[1] for peaks in _peaks(result)) > 256 << 20
    assert result.max_resident_bytes < 0.9 * 2**30  # 3.5 GiB when they were held


def test_counts_communicators_with_pytorch_sizes(run: Callable[..., Result]) -> None:
    result = run(GROUPS, bound=True)
    found = [(one.ranks, set(one.by_kind)) for one in calls_in(result.ledger)]
    assert found == [(8, {"all_reduce", "broadcast"}), (4, {"all_reduce"}), (2, set())]
    (contexts,) = [entry.name for entry in result.ledger if entry.kind is CallHandling.CONTEXT]
    assert contexts == "0"
    assert "strangers" not in result.trace.header[RANKS]  # type: ignore[union-attr]


def test_objects_come_from_their_sender(run: Callable[..., Result]) -> None:
    result = run(OBJECTS, 4)
    assert len(_peaks(result)) == 2
    assert {"objects", "groups of Gloo"} <= {entry.name for entry in result.ledger if entry.code is Code.ABSENT}


def test_traces_all_pipeline_stages(run: Callable[..., Result]) -> None:
    first, second, last = _peaks(run(PIPELINE, 4))
    assert (first[0], second[0], last[0]) == (0, 2, 3)  # the last one's shapes come from rank 0, at the place of rank 1
    assert first[1] < second[1] == last[1]


def test_distinguishes_ranks_started_by_script(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "spawn.py").write_text(textwrap.dedent(SPAWNED))
    first, last = _peaks(run("", 2, command=("python", "spawn.py"), world_size=2))
    assert (first[0], last[0]) == (0, 1)
    assert first[1] < last[1]


def test_values_pass_through_collectives(run: Callable[..., Result]) -> None:
    result = run(VALUES, 4)
    assert result.ended == ""
    assert any(entry.name == "single numbers" for entry in result.ledger)  # values of unseen peers are counted


def test_ranks_replace_no_real_checkpoint(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / ".metadata").write_text("real")
    result = run(CHECKPOINTS, 4)
    assert len(_peaks(result)) == 2
    assert result.ended == ""
    assert [path.name for path in tmp_path.iterdir() if path.name != "train.py"] == ["old"]
    assert (tmp_path / "old" / ".metadata").read_text() == "real"


def test_requests_missing_sender_in_ranks(run: Callable[..., Result]) -> None:
    with pytest.raises(CannotEstimate, match=r"recv_object_list from rank 2, .* --ranks.*rank 1 of 4"):
        run("rank and dist.recv_object_list([None], src=2)\ntrain(model)", 4, ranks=(0, 1))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("shared.rendezvous(shared.empty(1024, device='cuda'), name)", r"cuMemExportToShareableHandle \(train.py:\d+"),
        ("shared.enable_symm_mem_for_group(name)", "enable_symm_mem_for_group"),  # for async tensor parallel
    ],
)
def test_rejects_memory_shared_by_ranks(run: Callable[..., Result], call: str, named: str) -> None:
    shares = f"""
    import torch.distributed._symmetric_memory as shared
    name = dist.group.WORLD.group_name
    {call}
    train(model)
    """
    with pytest.raises(OtherAllocator, match=rf"^The job shares card memory .*{named}.*run the job without.*rank 0 of 4"):
        run(shares, 4)


def test_reports_rank_that_waits_forever(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(textwrap.dedent(WAITS))
    with pytest.raises(CannotEstimate, match=r"it waited .* for another rank.* in waits.py:\d+ \(rank 0 of 4\)"):
        run("", 4, command=("torchrun", "--nproc_per_node=4", "waits.py"))


def test_names_rank_that_raises(run: Callable[..., Result]) -> None:
    failed = run("if rank == 7: raise ValueError('no data')\ntrain(model)")  # after the model was moved to the card
    assert "raised ValueError: no data" in failed.ended
    assert failed.ended.endswith("(rank 7 of 8)")
