"""A diffusion model with several averages of its weights (post-hoc EMA), which start after a warm-up."""

import copy

import torch
from torch import nn


class PowerEMA:
    def __init__(self, net, decays, start):
        self.net, self.decays, self.start = net, decays, start
        self.copies = None

    @torch.no_grad()
    def update(self, step):
        if step < self.start:
            return
        if self.copies is None:
            self.copies = [copy.deepcopy(self.net).eval().requires_grad_(False) for _ in self.decays]
        for average, decay in zip(self.copies, self.decays, strict=True):
            for kept, current in zip(average.parameters(), self.net.parameters(), strict=True):
                kept.lerp_(current, 1 - decay)


def build(width=4096, depth=20):
    layers = [nn.Linear(256, width)]
    for _ in range(depth):
        layers += [nn.SiLU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Linear(width, 256))


net = build().cuda()
ema = PowerEMA(net, decays=(0.999, 0.9995, 0.9999, 0.99995), start=10_000)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
for step in range(100_000):
    clean = torch.randn(512, 256, device="cuda")
    noise = torch.randn_like(clean)
    sigma = torch.rand(512, 1, device="cuda")
    loss = (net(clean + sigma * noise) - noise).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(step)
