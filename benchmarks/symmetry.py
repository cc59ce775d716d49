"""Whether the ranks which `--ranks auto` traces are enough: ten jobs of eight ranks, against all eight traced.

python -m benchmarks.symmetry [--only TEXT]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.figures import table
from vramcast.units import MIB

_SIZE: Final = 8
_HEAD: Final = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")


def mlp(width=1024, layers=8):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).cuda()


def train(model, optimizer=None, width=1024):
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(64, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
_FSDP1: Final = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"
_FSDP2: Final = """
from torch.distributed.fsdp import fully_shard
def shard(model, **options):
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)
"""
_PIPELINE: Final = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("pp", "dp"))
place, group = mesh.get_local_rank("pp"), mesh.get_group("pp")
def stages(turns):
    parts = [mlp(layers=3 if place == 1 else 2) for _ in range(turns)]
    device = torch.device("cuda")
    return [PipelineStage(one, place + 4 * turn, 4 * turns, device, group=group) for turn, one in enumerate(parts)]
def run(schedule, parts):
    optimizer = torch.optim.AdamW([p for part in parts for p in part.submod.parameters()])
    for _ in range(3):
        whole = torch.randn(64, 1024, device="cuda")
        if place == 0:
            schedule.step(whole)
        elif place == 3:
            schedule.step(target=whole, losses=[])
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
loss = lambda out, wanted: (out - wanted).pow(2).mean()
"""
_PARALLEL: Final = """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
def split(model, mesh):
    styles = {str(n): ColwiseParallel() if n % 2 == 0 else RowwiseParallel() for n in range(len(model))}
    return parallelize_module(model, mesh, styles)
"""
JOBS: Final = {
    "DDP": "train(nn.parallel.DistributedDataParallel(mlp()))",
    "DDP, ZeroRedundancyOptimizer": """
from torch.distributed.optim import ZeroRedundancyOptimizer
model = nn.parallel.DistributedDataParallel(mlp(layers=9))
train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW))
""",
    "FSDP1, FULL_SHARD": _FSDP1 + "train(FSDP(mlp(), use_orig_params=True))",
    "FSDP1, SHARD_GRAD_OP": _FSDP1 + "train(FSDP(mlp(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP))",
    "FSDP2": _FSDP2 + "train(shard(mlp()))",
    "FSDP2, uneven shards": _FSDP2 + "train(shard(mlp(1001)), width=1001)",
    "HSDP 2 x 4": _FSDP2 + 'train(shard(mlp(), mesh=init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))))',
    "tensor parallel 4 x FSDP2 of 2": _FSDP2 + _PARALLEL + """
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
train(shard(split(mlp(), mesh["tp"]), mesh=mesh["dp"]))
""",
    "pipeline of 4, two copies, 1F1B": _PIPELINE + "parts = stages(1)\nrun(Schedule1F1B(parts[0], 8, loss_fn=loss), parts)",
    "pipeline of 4, two copies, interleaved": _PIPELINE + """
parts = stages(2)
run(ScheduleInterleaved1F1B(parts, 8, loss_fn=loss), parts)
""",
}  # fmt: skip


def answer(script: Path, ranks: str) -> dict[str, Any]:
    """Return the JSON of a job whose ranks are chosen so."""
    command = [sys.executable, "-m", "vramcast", "run", "--json", "--device", "h100", "--until", "steps", "--no-bracket"]
    launched = [*command, "--ranks", ranks, "--", "torchrun", f"--nproc_per_node={_SIZE}", script.name]
    done = subprocess.run(launched, cwd=script.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{script.name} --ranks {ranks}: {done.stderr.strip().splitlines()[-1]}")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row a job; exit 1 where one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only jobs whose name has this in it")
    only = parser.parse_args(arguments).only
    rows, missed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name, text in JOBS.items():
            if only not in name:
                continue
            script = Path(folder) / "train.py"
            script.write_text(_HEAD + textwrap.dedent(text), encoding="utf-8")
            every, some = answer(script, "all"), answer(script, "auto")
            traced = {one["rank"]: one["peaks"] for one in some["ranks"]}
            is_same = every["peaks"]["reserved"] == some["peaks"]["reserved"] and all(
                one["peaks"] == traced[one["rank"]] for one in every["ranks"] if one["rank"] in traced
            )
            missed += not is_same
            kinds = len({tuple(one["peaks"].values()) for one in every["ranks"]})
            peak = f"{every['peaks']['reserved'] / MIB:,.1f}"
            rows.append([name, kinds, " ".join(map(str, traced)), peak, "the same" if is_same else "differs"])
            print(f"{name}: {rows[-1]}", file=sys.stderr)
    print(table(["job", "different ranks of 8", "auto traces", "fullest rank's reserved MiB", "auto against all"], rows))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
