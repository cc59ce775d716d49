"""Train, validate each epoch, test once at the end with a larger batch, as most tutorials do."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    epochs: int = 40
    batch_size: int = 64
    test_batch_size: int = 4096


class Digits(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.zeros(1, 28, 28), 0


def train(model, loader, optimizer):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data.cuda()), target.cuda())
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = 0
    for data, target in loader:
        correct += model(data.cuda()).argmax(1).eq(target.cuda()).sum().item()
    return correct / len(loader.dataset)


def main(cfg):
    model = nn.Sequential(
        *(nn.Conv2d(1, 256, 3, 1, 1), nn.ReLU(), nn.Conv2d(256, 512, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(512, 10), nn.LogSoftmax(1)),
    ).cuda()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, cfg.epochs + 1):
        train(model, DataLoader(Digits(6_400), cfg.batch_size, shuffle=True), optimizer)
        print(epoch, evaluate(model, DataLoader(Digits(640), cfg.batch_size)))
        scheduler.step()
    print("test", evaluate(model, DataLoader(Digits(12_288), cfg.test_batch_size)))


main(Config())
