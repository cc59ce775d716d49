"""Training jobs that end after their steps: python jobs.py JOB STEPS [--plan plan.json].

`follow.py` plans them, and runs them again with a plan; some then deviate from the plan.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

Batch = tuple[torch.Tensor, torch.Tensor]


class Block(torch.nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.middle = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        batch, length, width = x.shape
        heads = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.before(x)).view(heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.middle(x))))


class GPT(torch.nn.Module):
    """A small language model."""

    def __init__(self, vocabulary: int = 8192, width: int = 256, layers: int = 4, length: int = 512) -> None:
        super().__init__()
        self.token, self.place = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class LoRA(torch.nn.Module):
    """A frozen linear layer with a trained change of low rank."""

    def __init__(self, linear: torch.nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = torch.nn.Linear(linear.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        return self.linear(x) + self.up(self.down(x))


@dataclass
class Job:
    """A model with its batches, and how a step of it is made."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[], Batch]
    loss_of: Callable[..., torch.Tensor]
    run: Callable[..., Any]
    amp: bool = False
    accumulated: int = 1
    evaluates: bool = False
    n_steps: int = 0
    kept: list[Any] = field(default_factory=list)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        with torch.autocast("cuda", torch.bfloat16, enabled=self.amp):
            return self.loss_of(self.run(x), y)

    def gradients(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Take the gradients of a batch, and return its loss."""
        loss = self.loss(x, y)
        self.optimizer.zero_grad()
        loss.backward()
        return loss

    def step(self) -> None:
        """Make a training step, and what comes after it."""
        self.n_steps += 1
        if self.accumulated > 1:
            self.optimizer.zero_grad()
        for _ in range(self.accumulated):
            x, y = self.batch()
            loss = self.loss(x, y)
            if self.accumulated == 1:
                self.optimizer.zero_grad()
            (loss if self.accumulated == 1 else loss / self.accumulated).backward()
        self.optimizer.step()
        if self.evaluates and self.n_steps % 2 == 0:
            self.evaluate()

    def evaluate(self) -> None:
        """Take three batches without gradients."""
        self.model.eval()
        with torch.no_grad():
            for _ in range(3):
                self.loss(*self.batch())
        self.model.train()


def make(name: str) -> Job:
    """Return a job by its name."""
    torch.manual_seed(0)
    if name == "cnn":
        import torchvision

        model: torch.nn.Module = torchvision.models.resnet18().cuda()
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def images() -> Batch:
            return torch.randn(16, 3, 224, 224).cuda(), torch.randint(1000, (16,)).cuda()

        return Job(model, optimizer, images, F.cross_entropy, model)
    model = GPT()
    if name == "lora":
        model.requires_grad_(False)
        for block in model.blocks:  # type: ignore[attr-defined]
            block.qkv, block.out = LoRA(block.qkv), LoRA(block.out)
    model = model.cuda()
    if name == "checkpointing":
        from torch.utils.checkpoint import checkpoint

        for block in model.blocks:  # type: ignore[attr-defined]
            block.forward = lambda x, forward=block.forward: checkpoint(forward, x, use_reentrant=False)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    run: Any = model
    if name in DISTRIBUTED:
        run = torch.nn.parallel.DistributedDataParallel(model)
    if name == "compiled":
        run = torch.compile(model)
    lengths = iter((512, 384, 512, 256, 384, 512, 256) * 100)

    def ids() -> Batch:
        length = next(lengths) if name == "lengths" else 512
        tokens = torch.randint(8192, (42 if name == "large" else 16, length + 1)).cuda()
        return tokens[:, :-1], tokens[:, 1:]

    def loss_of(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    accumulated = 2 if name == "accumulation" else 1
    return Job(model, optimizer, ids, loss_of, run, name == "amp", accumulated, name == "evaluation")


LARGE = "large"  # needs more than 4 GiB, unless it follows a plan
DISTRIBUTED = ("ranks", "one_rank")
JOBS = (
    "cnn", "transformer", "lora", "amp", "checkpointing", "compiled", "ranks", "lengths", "evaluation", "accumulation",
)  # fmt: skip


def measured(name: str, n_steps: int, deviation: str = "") -> dict[str, Any]:
    """Run a job, and return the bytes that the device lost after each step, and what torch says at the end."""
    device: list[int] = []
    error = ""
    if name in DISTRIBUTED:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    torch.cuda.current_stream().record_event()
    free, total = torch.cuda.mem_get_info()
    before = total - free  # its context
    try:
        job = make(name)
        step = job.step
        if deviation:
            import deviations  # in this folder, as this file runs as a script

            step = deviations.DEVIATIONS[deviation](job)
        for _ in range(n_steps):
            step()
            free, total = torch.cuda.mem_get_info()
            device.append(total - free - before)
    except torch.OutOfMemoryError as full:
        error = str(full)
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    return {
        "device": device,
        "out_of_memory": error,
        "stats": torch.cuda.memory_stats(),
        "in_snapshot": {
            state: sum(block["size"] for block in blocks if block["state"] == state)
            for state in ("active_allocated", "active_awaiting_free")
        },
        "blocks": sum(block["state"] == "active_allocated" for block in blocks),
    }


def main() -> None:
    """Run the job of the command line; with --plan, follow it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("steps", type=int)
    parser.add_argument("--plan")
    parser.add_argument("--out")
    options = parser.parse_args()
    follower = None
    if options.plan:
        import vramcast.runtime

        follower = vramcast.runtime.follow(options.plan)
    found = measured(options.name, options.steps)
    if options.out:
        counts = asdict(follower.counts()) if follower else None
        Path(options.out).write_text(json.dumps({**found, "counts": counts}))


if __name__ == "__main__":
    main()
