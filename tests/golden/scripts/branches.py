"""A training that branches on values read on the host."""

import torch
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8)).cuda()
optimizer = torch.optim.RMSprop(model.parameters(), momentum=0.9)
best = float("inf")
for step in range(5):
    x = torch.randn(512, 256).cuda()
    valid = torch.arange(512, device="cuda") < 100 * (step + 1)
    x = x[valid]
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() < best:
        best = loss.item()
    history = torch.empty(int(valid.sum()), 1000, device="cuda") if step % 2 else None
