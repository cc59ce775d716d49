"""Snapshot ensembles (Huang et al., 2017): a copy of the model is kept on the card at the end of each cosine cycle."""

import math
from copy import deepcopy

import torch
from torch import nn


def train(model, steps, cycles, base_lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr=base_lr, momentum=0.9)
    cycle = steps // cycles
    snapshots = []
    best = math.inf

    def on_step(step, loss):
        nonlocal best
        for group in optimizer.param_groups:
            group["lr"] = base_lr / 2 * (math.cos(math.pi * (step % cycle) / cycle) + 1)
        if (step + 1) % cycle == 0:
            snapshots.append(deepcopy(model))
            best = min(best, loss.item())

    for step in range(steps):
        x = torch.randn(256, 2048, device="cuda")
        loss = (model(x) - x).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        on_step(step, loss)
    return snapshots


network = nn.Sequential(*(layer for _ in range(16) for layer in (nn.Linear(2048, 2048), nn.ReLU()))).cuda()
ensemble = train(network, steps=120_000, cycles=40)
print(len(ensemble))
