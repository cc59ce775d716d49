"""Gradual unfreezing (ULMFiT): the classifier alone at first, then one more group of layers each few epochs."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def block(width):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Classifier(nn.Module):
    def __init__(self, width=1024, depth=16):
        super().__init__()
        self.embed = nn.Embedding(30_000, width)
        self.blocks = nn.ModuleList(block(width) for _ in range(depth))
        self.out = nn.Linear(width, 4)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.blocks:
            x = x + layer(x)
        return self.out(x.mean(1))

    def groups(self):
        return [self.out, *(self.blocks[i : i + 4] for i in range(12, -1, -4)), self.embed]


def unfreeze(groups, count):
    for group in groups[:count]:
        for parameter in group.parameters():
            parameter.requires_grad = True


model = Classifier().cuda()
model.requires_grad_(False)
texts = TensorDataset(torch.zeros(4096, 128, dtype=torch.long), torch.zeros(4096, dtype=torch.long))
loader = DataLoader(texts, batch_size=128, shuffle=True)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.7, 0.99))
for epoch in range(24):
    unfreeze(model.groups(), 1 + epoch // 4)
    model.train()
    for ids, labels in loader:
        loss = F.cross_entropy(model(ids.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, sum(p.requires_grad for p in model.parameters()))
