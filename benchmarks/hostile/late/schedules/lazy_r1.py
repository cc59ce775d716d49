"""StyleGAN2's lazy regularization: the gradient penalty of the discriminator comes every 16 steps, alike to the end."""

import torch
import torch.nn.functional as F
from torch import autograd, nn

D_REG_EVERY, R1, ITERATIONS = 16, 10.0, 80_000

generator = nn.Sequential(nn.Linear(512, 4096), nn.LeakyReLU(0.2), nn.Linear(4096, 3072), nn.Tanh()).cuda()
discriminator = nn.Sequential(nn.Linear(3072, 4096), nn.LeakyReLU(0.2), nn.Linear(4096, 1)).cuda()
g_optim = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.0, 0.99))
d_optim = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.0, 0.99))


def requires_grad(model, flag):
    for p in model.parameters():
        p.requires_grad = flag


for i in range(ITERATIONS):
    real = torch.rand(256, 3072, device="cuda") * 2 - 1
    requires_grad(generator, False)
    requires_grad(discriminator, True)
    fake = generator(torch.randn(256, 512, device="cuda"))
    d_loss = F.softplus(discriminator(fake)).mean() + F.softplus(-discriminator(real)).mean()
    discriminator.zero_grad()
    d_loss.backward()
    d_optim.step()
    if i % D_REG_EVERY == 0:
        real.requires_grad = True
        prediction = discriminator(real)
        (grad,) = autograd.grad(prediction.sum(), real, create_graph=True)
        penalty = grad.pow(2).reshape(grad.shape[0], -1).sum(1).mean()
        discriminator.zero_grad()
        (R1 / 2 * penalty * D_REG_EVERY + 0 * prediction[0, 0]).backward()
        d_optim.step()
    requires_grad(generator, True)
    requires_grad(discriminator, False)
    g_loss = F.softplus(-discriminator(generator(torch.randn(256, 512, device="cuda")))).mean()
    generator.zero_grad()
    g_loss.backward()
    g_optim.step()
