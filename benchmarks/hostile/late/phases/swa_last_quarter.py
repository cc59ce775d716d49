"""Stochastic weight averaging over the last quarter of the epochs, as in PyTorch's own documentation."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 80
SWA_START = int(0.75 * EPOCHS)


def main():
    loader = DataLoader(TensorDataset(torch.zeros(4096, 1024), torch.zeros(4096, dtype=torch.long)), 256, shuffle=True)
    layers = [nn.Linear(1024, 8192), nn.BatchNorm1d(8192), nn.ReLU()]
    for _ in range(9):
        layers += [nn.Linear(8192, 8192), nn.BatchNorm1d(8192), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(8192, 100)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    swa_model, swa_scheduler = None, SWALR(optimizer, swa_lr=0.05)
    for epoch in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        if epoch >= SWA_START:
            if swa_model is None:
                swa_model = AveragedModel(model)
            swa_model.update_parameters(model)
            swa_scheduler.step()
        else:
            scheduler.step()
    update_bn(loader, swa_model, device="cuda")


main()
