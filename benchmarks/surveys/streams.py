"""Both extremes of a card's speed: peaks of jobs with 8 ranks on an infinitely fast and on an infinitely slow card.

python -m benchmarks.surveys.streams [--only TEXT]

Rank 0 is traced, on an H100. No card has measured these jobs: the table shows the distance between the extremes; only a
measurement shows where a real card lies.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Final

from benchmarks.surveys.launched import launched
from benchmarks.tables import table

_HEAD: Final = """
    import os
    import torch
    import torch.distributed as dist
    from torch import nn

    card = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(card)
    dist.init_process_group("nccl")

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(1024, 4096), nn.Linear(4096, 1024)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x)))

    def train(model, batch, loss, steps=4):
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model, batch()).backward()
            optimizer.step()

    def ddp(model):
        return nn.parallel.DistributedDataParallel(model, device_ids=[card.index])

    blocks = nn.Sequential(*[Block() for _ in range(4)]).to(card)
    rows = lambda: torch.zeros(8, 1024, device=card)
    summed = lambda model, x: model(x).float().sum()
"""
_JOBS: Final = {
    "FSDP1, 4 MLP blocks": """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        wrapped = FSDP(blocks, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=card, use_orig_params=True)
        train(wrapped, rows, summed)
    """,
    "FSDP2, the same": """
        from torch.distributed.fsdp import fully_shard
        for block in blocks:
            fully_shard(block)
        train(fully_shard(blocks), rows, summed)
    """,
    "tensor parallel, the same": """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        for block in blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        train(blocks, rows, summed)
    """,
    "DDP, GPT-2 small, 8 x 1,024": """
        from transformers import GPT2Config, GPT2LMHeadModel
        batch = lambda: torch.zeros(8, 1024, dtype=torch.long).to(card)
        del blocks
        train(ddp(GPT2LMHeadModel(GPT2Config()).to(card)), batch, lambda model, x: model(input_ids=x, labels=x).loss)
    """,
    "DDP, ResNet-50, batch 64": """
        import torchvision
        batch = lambda: (torch.zeros(64, 3, 224, 224).to(card), torch.zeros(64, dtype=torch.long).to(card))
        del blocks
        model = ddp(torchvision.models.resnet50().to(card))
        train(model, batch, lambda model, b: nn.functional.cross_entropy(model(b[0]), b[1]))
    """,
}


def row(name: str, script: Path) -> list[object]:
    """Return the table cells of both extremes of a job."""
    found = launched(script, 8, "--until", "steps", "--steps", "4", "--ranks", "0", "--bracket").need(name)
    fast, slow = found["streams"]["fast"], found["streams"]["slow"]
    if slow is None:
        sys.exit(f"{name}: {found['warnings']}")
    sizes = [end[kind] / 2**30 for kind in ("allocated", "reserved") for end in (fast, slow)]
    cells = [f"{size:.3f}" for size in sizes]
    return [name, *cells, f"{100 * (sizes[3] / sizes[2] - 1):+.1f} %"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only jobs whose name contains TEXT")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        for name, code in _JOBS.items():
            if options.only in name:
                script.write_text(textwrap.dedent(_HEAD) + textwrap.dedent(code))
                rows.append(row(name, script))
    head = ["job", "allocated GiB, fast", "slow", "reserved GiB, fast", "slow", "slow against fast"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
