"""A VQGAN-like autoencoder (taming-transformers): the discriminator and its loss start at step `--disc-start`."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--disc-start", type=int, default=30_000)
parser.add_argument("--max-steps", type=int, default=200_000)
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()


def adopt_weight(weight, global_step, threshold=0, value=0.0):
    if global_step < threshold:
        weight = value
    return weight


encoder = nn.Sequential(
    nn.Conv2d(3, 64, 4, 2, 1), nn.SiLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.SiLU(), nn.Conv2d(128, 32, 3, 1, 1)
)
decoder = nn.Sequential(nn.ConvTranspose2d(32, 64, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1))
discriminator = nn.Sequential(
    *(nn.Conv2d(3, 256, 3, 1, 1), nn.LeakyReLU(0.2), nn.Conv2d(256, 256, 3, 1, 1), nn.LeakyReLU(0.2)),
    *(nn.Conv2d(256, 512, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(512, 1, 3, 1, 1)),
)
encoder, decoder, discriminator = encoder.cuda(), decoder.cuda(), discriminator.cuda()
opt_g = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=4.5e-6, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=4.5e-6, betas=(0.5, 0.9))

for global_step in range(args.max_steps):
    real = torch.rand(args.batch_size, 3, 256, 256, device="cuda")
    fake = decoder(encoder(real))
    loss = F.l1_loss(fake, real)
    factor = adopt_weight(0.8, global_step, threshold=args.disc_start)
    if factor > 0:
        loss = loss - factor * discriminator(fake).mean()
    opt_g.zero_grad()
    loss.backward()
    opt_g.step()
    if factor > 0:
        d_loss = F.relu(1.0 - discriminator(real)).mean() + F.relu(1.0 + discriminator(fake.detach())).mean()
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
