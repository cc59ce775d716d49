"""A plain loop with warm-up, cosine decay, clipping and a log every 100 steps: nothing changes in memory."""

import math

import torch
from torch import nn

STEPS, WARMUP, LOG = 50_000, 2_000, 100
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)


def lr_at(step):
    if step < WARMUP:
        return 3e-4 * (step + 1) / WARMUP
    return 3e-5 + 0.5 * (3e-4 - 3e-5) * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


running = 0.0
for step in range(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = lr_at(step)
    x = torch.randn(4096, 1024, device="cuda")
    loss = (model(x) - x.roll(1, 0)).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    running += loss.item()
    if step % LOG == LOG - 1:
        print(f"{step + 1:6d} loss {running / LOG:.4f} norm {norm.item():.2f} lr {lr_at(step):.2e}")
        running = 0.0
