"""Two models, two optimizers, three losses."""

import torch
from torch import nn

device = torch.device("cuda")
generator = nn.Sequential(
    nn.ConvTranspose2d(64, 128, 4), nn.BatchNorm2d(128), nn.ReLU(), nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64),
    nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh(),
).to(device)  # fmt: skip
critic = nn.Sequential(
    nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(64, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.LeakyReLU(0.2),
    nn.Conv2d(128, 1, 4),
).to(device)  # fmt: skip
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999), foreach=False)
loss_of = nn.BCEWithLogitsLoss()
for _step in range(8):
    real = torch.rand(64, 3, 16, 16, device=device)
    noise = torch.randn(64, 64, 1, 1, device=device)
    made = generator(noise)
    of_critic.zero_grad()
    scores = critic(real).flatten()
    loss_of(scores, torch.ones_like(scores)).backward()
    scores = critic(made.detach()).flatten()
    loss_of(scores, torch.zeros_like(scores)).backward()
    of_critic.step()
    of_generator.zero_grad()
    scores = critic(made).flatten()
    loss_of(scores, torch.ones_like(scores)).backward()
    of_generator.step()
