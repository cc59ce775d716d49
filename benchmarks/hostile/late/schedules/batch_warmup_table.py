"""Batch-size warm-up in place of a decay of the learning rate (Smith et al., 2018), from a table of stages."""

from bisect import bisect_right

import torch
import torch.nn.functional as F
from torch import nn

STARTS = [0, 2_000, 6_000, 12_000]
BATCHES = [128, 1_024, 16_384, 131_072]


def batch_size(step):
    return BATCHES[bisect_right(STARTS, step) - 1]


model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for step in range(20_000):
    n = batch_size(step)
    images = torch.randn(n, 1024, device="cuda")
    labels = torch.randint(10, (n,), device="cuda")
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 500 == 0:
        print(f"step {step}: batch {n}, loss {loss.item():.4f}")
