"""AlphaZero in small: self-play games and training; every 500 steps the new network meets the best one in an arena."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class PolicyValue(nn.Module):
    def __init__(self, channels=128, blocks=6):
        super().__init__()
        self.stem = nn.Conv2d(17, channels, 3, 1, 1)
        self.tower = nn.ModuleList(nn.Conv2d(channels, channels, 3, 1, 1) for _ in range(blocks))
        self.policy = nn.Linear(channels * 361, 362)
        self.value = nn.Linear(channels * 361, 1)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for conv in self.tower:
            x = F.relu(x + conv(x))
        x = x.flatten(1)
        return self.policy(x), torch.tanh(self.value(x))


class Coach:
    def __init__(self, eval_every=500, games=16_384):
        self.net = PolicyValue().cuda()
        self.best = copy.deepcopy(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
        self.eval_every, self.games = eval_every, games

    @torch.no_grad()
    def arena(self):
        boards = torch.zeros(self.games, 17, 19, 19, device="cuda")
        wins = 0
        for player in (self.net, self.best) * 4:
            _, value = player(boards)
            boards = boards.roll(1, 1)
            wins += (value > 0).sum()
        return wins.item() / (8 * self.games)

    def learn(self, steps):
        for step in range(1, steps + 1):
            boards = torch.randn(256, 17, 19, 19, device="cuda")
            policy, value = self.net(boards)
            loss = F.cross_entropy(policy, torch.randint(362, (256,), device="cuda")) + value.square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % self.eval_every == 0 and self.arena() > 0.55:
                self.best.load_state_dict(self.net.state_dict())


Coach().learn(steps=100_000)
