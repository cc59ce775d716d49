"""Gradient accumulation whose number of micro-batches is raised at a step; the micro-batch, and so the need, stays."""

import torch
import torch.nn.functional as F
from torch import nn


def micro_batches(step):
    return 1 if step < 2_000 else 4 if step < 8_000 else 16


def batches():
    while True:
        yield torch.randn(512, 1024, device="cuda"), torch.randint(1000, (512,), device="cuda")


net = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 1000)).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)
stream = batches()
for step in range(20_000):
    count = micro_batches(step)
    for _ in range(count):
        x, y = next(stream)
        loss = F.cross_entropy(net(x), y) / count
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
