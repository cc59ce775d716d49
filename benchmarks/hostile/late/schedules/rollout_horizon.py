"""Autoregressive fine-tuning of a weather model (GraphCast): the number of unrolled steps grows with training."""

import torch
from torch import nn


def horizons():
    """Yield the number of steps to unroll: one for the first 10,000 updates, then one more each 1,000, up to 16."""
    for _ in range(10_000):
        yield 1
    for horizon in range(2, 17):
        for _ in range(1_000):
            yield horizon


class Step(nn.Module):
    def __init__(self, fields=78, width=512, depth=6):
        super().__init__()
        self.encode = nn.Linear(fields, width)
        self.process = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.LayerNorm(width)) for _ in range(depth)
        )
        self.decode = nn.Linear(width, fields)

    def forward(self, state):
        hidden = self.encode(state)
        for layer in self.process:
            hidden = hidden + layer(hidden)
        return state + self.decode(hidden)


model = Step().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
for update, horizon in enumerate(horizons()):
    state = torch.randn(1, 20_000, 78, device="cuda")
    loss = 0.0
    for _ in range(horizon):
        state = model(state)
        loss = loss + (state - torch.randn_like(state)).square().mean()
    (loss / horizon).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 32.0)
    optimizer.step()
    optimizer.zero_grad()
    if update % 1_000 == 0:
        print(update, horizon)
