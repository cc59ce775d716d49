"""A curriculum inside an IterableDataset: its samples become longer with the number of samples it has given."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class CopyTask(IterableDataset):
    def __init__(self, batch, growth_every, longest):
        self.batch, self.growth_every, self.longest = batch, growth_every, longest
        self.given = 0

    def __iter__(self):
        while True:
            length = min(32 * 2 ** (self.given // self.growth_every), self.longest)
            self.given += 1
            yield torch.randint(64, (self.batch, length))


class Model(nn.Module):
    def __init__(self, dim=512, layers=6):
        super().__init__()
        self.embed = nn.Embedding(64, dim)
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 64)

    def forward(self, ids):
        return self.out(self.body(self.embed(ids)))


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
loader = DataLoader(CopyTask(batch=32, growth_every=4_000, longest=2048), batch_size=None)
for step, ids in enumerate(loader):
    if step >= 50_000:
        break
    ids = ids.cuda()
    loss = F.cross_entropy(model(ids).transpose(1, 2), ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
