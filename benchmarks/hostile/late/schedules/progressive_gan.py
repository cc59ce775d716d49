"""Progressive growing of a GAN (Karras et al., 2018): the resolution follows the number of images shown so far."""

import torch
import torch.nn.functional as F
from torch import nn

KIMG_PER_LEVEL = 600
TOTAL_KIMG = 5_000


class Critic(nn.Module):
    def __init__(self, levels=6, width=64):
        super().__init__()
        self.from_rgb = nn.ModuleList(nn.Conv2d(3, width, 1) for _ in range(levels))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(levels))
        self.score = nn.Linear(width * 16, 1)

    def forward(self, x, level):
        x = F.leaky_relu(self.from_rgb[level](x), 0.2)
        for conv in self.convs[:level]:
            x = F.avg_pool2d(F.leaky_relu(conv(x), 0.2), 2)
        return self.score(x.flatten(1))


class Generator(nn.Module):
    def __init__(self, levels=6, width=64):
        super().__init__()
        self.seed = nn.Linear(128, width * 16)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(levels))
        self.to_rgb = nn.ModuleList(nn.Conv2d(width, 3, 1) for _ in range(levels))

    def forward(self, z, level):
        x = self.seed(z).view(len(z), -1, 4, 4)
        for conv in self.convs[:level]:
            x = F.leaky_relu(conv(F.interpolate(x, scale_factor=2)), 0.2)
        return torch.tanh(self.to_rgb[level](x))


G, D = Generator().cuda(), Critic().cuda()
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.0, 0.99))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.0, 0.99))
shown = 0
while shown < TOTAL_KIMG * 1000:
    level = min(shown // (KIMG_PER_LEVEL * 1000), 5)
    z = torch.randn(256, 128, device="cuda")
    real = torch.rand(256, 3, 4 * 2**level, 4 * 2**level, device="cuda") * 2 - 1
    loss_d = F.softplus(D(G(z, level).detach(), level)).mean() + F.softplus(-D(real, level)).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    loss_g = F.softplus(-D(G(z, level), level)).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    shown += len(z)
