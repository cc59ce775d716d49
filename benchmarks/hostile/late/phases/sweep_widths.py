"""A sweep over sizes of a model in one process (a scaling study): the largest configuration comes last."""

import gc
from itertools import product

import torch
import torch.nn.functional as F
from torch import nn


def build(width, depth):
    layers = [nn.Linear(784, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)).cuda()


def train_one(width, depth, steps=2_000):
    model = build(width, depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        x, y = torch.randn(512, 784, device="cuda"), torch.randint(10, (512,), device="cuda")
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


results = {}
for width, depth in product((256, 1024, 4096, 8192), (2, 4, 8)):
    results[width, depth] = train_one(width, depth)
    gc.collect()
    torch.cuda.empty_cache()
print(min(results, key=results.get))
