"""Warm-up with plain SGD, then AdamW (an optimizer switch by epoch, as in SWATS the other way round)."""

import torch
from torch import nn


def make_optimizer(epoch, model):
    if epoch < 5:
        return torch.optim.SGD(model.parameters(), lr=1e-2)
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def epoch_of_data(batches=200):
    for _ in range(batches):
        x = torch.randn(64, 1024, device="cuda")
        yield x, x.flip(-1)


class Autoencoder(nn.Module):
    def __init__(self, width=6144, depth=12):
        super().__init__()
        self.encode = nn.Linear(1024, width)
        self.middle = nn.Sequential(*(nn.Sequential(nn.ReLU(), nn.Linear(width, width)) for _ in range(depth)))
        self.decode = nn.Linear(width, 1024)

    def forward(self, x):
        return self.decode(self.middle(self.encode(x)))


model = Autoencoder().cuda()
optimizer = None
for epoch in range(40):
    if epoch in (0, 5):
        optimizer = make_optimizer(epoch, model)
    total = 0.0
    for x, y in epoch_of_data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    print(f"epoch {epoch}: {total.item() / 200:.5f}")
