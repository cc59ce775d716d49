"""Contrastive pre-training whose number of views per step is raised after a warm-up; all views share one backward pass."""

import torch
import torch.nn.functional as F
from torch import nn


class Trainer:
    def __init__(self, warm_steps=5_000, views=40):
        self.encoder = nn.Sequential(nn.Linear(2048, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 256))
        self.encoder.cuda()
        self.optimizer = torch.optim.AdamW(self.encoder.parameters(), lr=3e-4)
        self.warm_steps, self.views = warm_steps, views
        self.step = 0

    @property
    def current_views(self):
        if self.step < self.warm_steps:
            return 2
        return self.views

    def loss_of(self, batch):
        first = F.normalize(self.encoder(batch), dim=-1)
        second = F.normalize(self.encoder(batch + 0.1 * torch.randn_like(batch)), dim=-1)
        logits = first @ second.t() / 0.1
        return F.cross_entropy(logits, torch.arange(len(batch), device="cuda"))

    def train_step(self):
        losses = [self.loss_of(torch.randn(1536, 2048, device="cuda")) for _ in range(self.current_views)]
        self.optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        self.optimizer.step()
        self.step += 1


trainer = Trainer()
while trainer.step < 60_000:
    trainer.train_step()
