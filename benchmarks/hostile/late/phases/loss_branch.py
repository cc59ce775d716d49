"""Branches that depend on the loss: a step is skipped if it is not finite or spikes, and the learning rate is lowered."""

import math
from collections import deque

import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 4096), nn.SiLU(), nn.Linear(4096, 2048)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
recent = deque(maxlen=50)
skipped = 0
n = 0
while n < 25_000:
    n += 1
    x = torch.randn(2048, 2048, device="cuda")
    loss = (model(x) - x).pow(2).mean()
    value = loss.item()
    if not math.isfinite(value):
        optimizer.zero_grad()
        skipped += 1
        continue
    if len(recent) == 50 and value > 3 * sum(recent) / 50:
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    recent.append(value)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if n % 1_000 == 0:
        print(n, value, skipped)
