"""Early stopping with patience (pytorchtools): training breaks off when the validation loss no longer falls."""

import copy

import torch
from torch import nn


class EarlyStopping:
    def __init__(self, patience=7, delta=0.0):
        self.patience, self.delta = patience, delta
        self.counter, self.best, self.state = 0, None, None

    def __call__(self, value, model):
        if self.best is None or value < self.best - self.delta:
            self.best, self.counter = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.counter += 1
        return self.counter >= self.patience


def batches(count):
    for _ in range(count):
        yield torch.randn(1024, 784, device="cuda"), torch.randint(10, (1024,), device="cuda")


model = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
stopper = EarlyStopping(patience=10)
for epoch in range(1, 501):
    model.train()
    for x, y in batches(60):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [criterion(model(x), y).item() for x, y in batches(10)]
    if stopper(sum(losses) / len(losses), model):
        print("Early stopping at", epoch)
        break
model.load_state_dict(stopper.state)
