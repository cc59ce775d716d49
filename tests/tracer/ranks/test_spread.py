"""A model on one rank of many: its blocks, and the same memory as an equivalent script."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramcast  # noqa: E402
from tests.lanes import sampled  # noqa: E402
from vramcast.core.errors import UsageError  # noqa: E402
from vramcast.estimates.result import Estimate  # noqa: E402
from vramcast.simulator import curves  # noqa: E402
from vramcast.tracer.format.rank_facts import HeldParameters  # noqa: E402
from vramcast.tracer.format.trace import Category  # noqa: E402
from vramcast.tracer.nullgpu.client import NullGpuTracer  # noqa: E402
from vramcast.tracer.ranks.spread import blocks  # noqa: E402
from vramcast.tracer.recording.shards import Holdings  # noqa: E402

# 500 rows are a multiple of 4 but not of 8: the shards of FSDP differ, those of HSDP do not.
MODEL = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(500)
        self.up, self.down = torch.nn.Linear(500, 2000), torch.nn.Linear(2000, 500)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(10_000, 500)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(4)])
        self.head = torch.nn.Linear(500, 10_000, bias=False)

    def forward(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
SCRIPT = """
import contextlib, os, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from model import Net

how, low = sys.argv[1], sys.argv[2] == "amp-bf16"
local, world = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
model, autocast = Net(), contextlib.nullcontext()
if how == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[local])
    autocast = torch.autocast("cuda", torch.bfloat16) if low else autocast
else:
    mesh = (world,) if how == "fsdp" else (2, world // 2)
    options = {"mesh": init_device_mesh("cuda", mesh, mesh_dim_names=("replicate", "shard")[-len(mesh):])}
    if low:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    optimizer.zero_grad()
    x, y = torch.zeros(8, 128, dtype=torch.long).cuda(), torch.zeros(8, 128, dtype=torch.long).cuda()
    with autocast:
        output = model(x)
        loss = torch.nn.functional.cross_entropy(output.reshape(-1, 10_000), y.reshape(-1))
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tracer: Callable[[], NullGpuTracer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with the model and the script that trains it."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text("import torch\n" + textwrap.dedent(SCRIPT))
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def estimated(model: Any = None, **options: Any) -> Estimate:
    made: dict[str, Any] = {}
    exec(MODEL, made)
    tokens = vramcast.TensorSpec((8, 128), "int64")
    options = {"labels": tokens, "optimizer": "adamw", "device": "h100", "world_size": 8, **options}
    return vramcast.estimate(model or made["Net"], tokens, **options)


@pytest.mark.parametrize(
    ("parallel", "precision", "ranks"), sampled([("hsdp:2x4", "amp-bf16", 1), ("ddp", "amp-bf16", 1), ("fsdp", "fp32", 2)], 3)
)
def test_model_matches_script(folder: Path, parallel: str, precision: str, ranks: int) -> None:
    words = ["train.py", parallel.partition(":")[0], precision]
    script = vramcast.estimate_command(words, device="h100", world_size=8, until="steps")
    model = estimated(parallel=parallel, precision=precision)
    assert (model.world_size, len(script.ranks), len(model.ranks)) == (8, 2, ranks)
    assert model.ranks == script.ranks[:ranks]  # to the byte; with equal shards, one rank is enough
    if ranks == 1:
        assert script.ranks[0].reserved == script.ranks[1].reserved
    assert (model.allocated, model.reserved) == (script.allocated, script.reserved)
    assert model.sharding == script.sharding
    assert model.breakdown["parameters"] == script.breakdown["parameters"]
    shards = {"ddp": 1, "fsdp": 8, "hsdp:2x4": 4}[parallel]
    assert [held.module for held in model.sharding] == ["tokens", *(f"blocks.{n}" for n in range(4)), "head"]
    full = 4 * 10_000 * 500
    assert model.sharding[0] == HeldParameters("tokens", full, full // shards * (shards > 1), full * (shards == 1))
    # Each rank's part of the state: two moments of fp32 for each parameter, in blocks of 512 bytes.
    held_bytes = sum(held.sharded + held.replicated for held in model.sharding)
    assert 2 * held_bytes <= model.breakdown["optimizer_state"] <= 2 * held_bytes + (64 << 10)
    assert model.breakdown["parameters"] >= held_bytes  # plus the root's, which stay gathered from forward to backward
    assert curves.live_bytes(model.trace, Category.GRADIENT).max() >= held_bytes  # shards, or buckets of DDP
    assert (model.other_rank is None) == (ranks == 1)
    if model.other_rank is not None:
        number, other = model.other_rank
        assert (number, other.header["peaks"]["allocated"]) == (7, model.ranks[1].allocated)
        assert "rank 0 of 8, which reserves most" in model.plot_text()
    said = model.to_dict()
    assert (said["parallel"], said["world_size"], [one["rank"] for one in said["ranks"]]) == (parallel, 8, [0, 7][:ranks])
    assert said["sharding"][0]["module"] == "tokens"
    assert "batch             per rank" in model.details()


def test_names_optimizer_without_shard_support(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"optimizer lbfgs cannot step on sharded parameters .* choose another one, adamw"):
        estimated(parallel="fsdp", optimizer="lbfgs")


def test_warns_of_model_without_blocks(folder: Path) -> None:
    found = estimated(torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 4)), parallel="fsdp", world_size=2)
    assert any("gathered as a whole" in text for text in found.warnings)


# ------------------------------------------------------------------------------------------------ the rule
class Cell(torch.nn.Module):
    """A block with two experts of one class, which are not blocks themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])


@pytest.fixture
def model() -> torch.nn.Module:
    """Return a model with a stem, stages in a list of lists, and a head."""
    stages = torch.nn.Sequential(torch.nn.Sequential(Cell(), Cell()), torch.nn.Sequential(Cell(), torch.nn.ReLU(), Cell()))
    return torch.nn.ModuleDict({"stem": torch.nn.Linear(4, 4), "stages": stages, "head": torch.nn.Embedding(4, 4)})


def test_blocks_are_outermost_repeated_children(model: torch.nn.Module) -> None:
    assert [type(block) for block in blocks(model)] == [Cell] * 4
    assert list(blocks(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.ReLU()))) == []
    assert len(list(blocks(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))))) == 2


def test_single_rank_has_no_holdings(model: torch.nn.Module) -> None:
    holdings = Holdings()
    holdings.note(model)
    assert holdings.to_header() == {"modules": [], "is_even": True}


def test_flat_parameters_and_partitions_count_as_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP1 keeps a module's flat parameter next to the parameters inside it; DeepSpeed's ZeRO-3 keeps a partition of each."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    flat, inside = torch.nn.Parameter(torch.zeros(10)), torch.nn.Parameter(torch.zeros(3))
    flat._unpadded_unsharded_size, flat._local_shard = torch.Size([80]), torch.zeros(10)
    flat._fsdp_flattened = inside._fsdp_flattened = True
    wrapped = torch.nn.Module()
    wrapped.register_parameter("_flat_param", flat)
    wrapped.register_parameter("weight", inside)
    partition = torch.nn.Parameter(torch.zeros(0))
    partition.ds_numel, partition.ds_tensor = 100, torch.zeros(13)
    other = torch.nn.Module()
    other.register_parameter("weight", partition)
    holdings = Holdings()
    holdings.note(torch.nn.ModuleDict({"wrapped": wrapped, "other": other, "norm": torch.nn.LayerNorm(4)}))
    assert holdings.to_header()["modules"] == [["wrapped", 320, 40, 0], ["other", 400, 52, 0], ["norm", 32, 0, 32]]
