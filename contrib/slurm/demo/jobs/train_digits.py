"""An ordinary training script, which the service runs on its null GPU to estimate its memory."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int)
parser.add_argument("--batch", type=int)
options = parser.parse_args()

model = torch.nn.Sequential(
    torch.nn.Linear(784, options.width),
    torch.nn.ReLU(),
    torch.nn.Linear(options.width, options.width),
    torch.nn.ReLU(),
    torch.nn.Linear(options.width, 10),
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1000):
    images, digits = torch.rand(options.batch, 784, device="cuda"), torch.randint(10, (options.batch,), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(images), digits)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        print(step, loss.item())
