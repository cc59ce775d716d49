"""Distillation that begins at an epoch: a teacher is built then, and the need rises to half of the card."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def mlp(width, depth):
    return nn.Sequential(nn.Linear(512, width), *(m for _ in range(depth) for m in (nn.ReLU(), nn.Linear(width, width))))


class Distiller:
    start_epoch = 20

    def __init__(self):
        self.student, self.head = mlp(1024, 4).cuda(), nn.Linear(1024, 100).cuda()
        self.teacher, self.match = None, None
        self.optimizer = torch.optim.Adam([*self.student.parameters(), *self.head.parameters()])

    def start_epoch_hook(self, epoch):
        if epoch < self.start_epoch or self.teacher is not None:
            return
        self.teacher = mlp(8192, 10).cuda().eval().requires_grad_(False)
        self.match = nn.Linear(1024, 8192).cuda()
        self.optimizer.add_param_group({"params": self.match.parameters()})

    def train_batch(self, x, y):
        features = self.student(x)
        loss = F.cross_entropy(self.head(features), y)
        if self.teacher is not None:
            with torch.no_grad():
                wanted = self.teacher(x)
            loss = loss + F.mse_loss(self.match(features), wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


loader = DataLoader(TensorDataset(torch.zeros(10_240, 512), torch.zeros(10_240, dtype=torch.long)), 512, shuffle=True)
distiller = Distiller()
for epoch in range(60):
    distiller.start_epoch_hook(epoch)
    for x, y in loader:
        distiller.train_batch(x.cuda(), y.cuda())
