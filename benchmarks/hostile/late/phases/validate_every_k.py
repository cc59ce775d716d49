"""Validation every 250 steps inside the epoch, with the batch size of training and without gradients: nothing grows."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_loader(samples, shuffle):
    return DataLoader(TensorDataset(torch.zeros(samples, 1024)), batch_size=128, shuffle=shuffle)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 64))
        self.up = nn.Sequential(nn.Linear(64, 4096), nn.GELU(), nn.Linear(4096, 1024))

    def forward(self, x):
        return self.up(self.down(x))


@torch.no_grad()
def validate(model, loader):
    was_training = model.training
    model.eval()
    losses = torch.stack([nn.functional.mse_loss(model(x.cuda()), x.cuda()) for (x,) in loader])
    model.train(was_training)
    return losses.mean().item()


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train_loader, val_loader = make_loader(64_000, True), make_loader(6_400, False)
global_step = 0
for epoch in range(20):
    for (x,) in train_loader:
        x = x.cuda()
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        global_step += 1
        if global_step % 250 == 0:
            print(f"epoch {epoch} step {global_step}: val {validate(model, val_loader):.4f}")
