"""The same training with five seeds in one process; each model is freed before the next one."""

import statistics

import torch
import torch.nn.functional as F
from torch import nn


def run(seed, steps=3_000):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Dropout(0.5), nn.Linear(2048, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        if step in (1_500, 2_500):
            for group in optimizer.param_groups:
                group["lr"] *= 0.1
        x, y = torch.randn(2048, 784, device="cuda"), torch.randint(10, (2048,), device="cuda")
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


losses = [run(seed) for seed in range(5)]
print(statistics.mean(losses), statistics.stdev(losses))
