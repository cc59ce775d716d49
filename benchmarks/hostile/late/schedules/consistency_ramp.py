"""Semi-supervised training (FixMatch with a ramp, as in Temporal Ensembling): unlabelled batches count after a warm-up."""

from itertools import cycle

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def ramp_up(step, start=4_000, length=8_000):
    if step < start:
        return 0.0
    return float(np.exp(-5.0 * (1.0 - min(1.0, (step - start) / length)) ** 2))


net = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 10)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True)
labelled = DataLoader(TensorDataset(torch.zeros(4096, 1024), torch.zeros(4096, dtype=torch.long)), 64, shuffle=True)
unlabelled = DataLoader(TensorDataset(torch.zeros(131_072, 1024)), 65_536, shuffle=True)

step = 0
for _epoch in range(400):
    for (x, y), (u,) in zip(labelled, cycle(unlabelled), strict=False):
        x, y = x.cuda(), y.cuda()
        loss = F.cross_entropy(net(x), y)
        weight = ramp_up(step)
        if weight > 0:
            u = u.cuda()
            with torch.no_grad():
                confidence, guess = F.softmax(net(u), -1).max(-1)
            strong = net(u + 0.1 * torch.randn_like(u))
            loss = loss + weight * (F.cross_entropy(strong, guess, reduction="none") * (confidence > 0.95)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
