"""A diffusion model with Accelerate; every 1,000 steps samples are drawn in a large batch, as diffusers' scripts do."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_train_epochs", type=int, default=100)
    parser.add_argument("--validation_steps", type=int, default=1000)
    parser.add_argument("--num_samples", type=int, default=1024)
    return parser.parse_args([])


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 256, 3, 1, 1)
        self.middle = nn.Sequential(nn.SiLU(), nn.Conv2d(256, 256, 3, 1, 1), nn.SiLU(), nn.Conv2d(256, 256, 3, 1, 1))
        self.up = nn.Conv2d(256, 3, 3, 1, 1)

    def forward(self, x):
        x = self.down(x)
        return self.up(x + self.middle(x))


@torch.no_grad()
def log_validation(model, accelerator, count):
    images = torch.randn(count, 3, 64, 64, device=accelerator.device)
    for _ in range(10):
        images = images - 0.1 * model(images)
    return images.clamp(-1, 1)


def main(args):
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=1)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(TensorDataset(torch.zeros(1_600, 3, 64, 64)), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    global_step = 0
    for _epoch in range(args.num_train_epochs):
        for (clean,) in loader:
            with accelerator.accumulate(model):
                noise = torch.randn_like(clean)
                loss = F.mse_loss(model(clean + noise), noise)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                global_step += 1
                if accelerator.is_main_process and global_step % args.validation_steps == 0:
                    log_validation(model, accelerator, args.num_samples)


main(parse_args())
