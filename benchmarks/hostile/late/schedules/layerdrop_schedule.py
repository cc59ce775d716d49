"""Stochastic depth with a schedule: most layers are dropped at random at first, none at the end (curriculum of depth)."""

import random

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    def __init__(self, dim=768, depth=24):
        super().__init__()
        self.stem = nn.Linear(256, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 1000)
        self.drop_prob = 0.0

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            if self.training and random.random() < self.drop_prob:
                continue
            x = block(x)
        return self.head(x.mean(1))


def main(total=100_000, full_at=0.6):
    random.seed(0)
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05)
    for step in range(total):
        net.drop_prob = max(0.0, 0.85 * (1 - step / (full_at * total)))
        x, y = torch.randn(128, 196, 256, device="cuda"), torch.randint(1000, (128,), device="cuda")
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
