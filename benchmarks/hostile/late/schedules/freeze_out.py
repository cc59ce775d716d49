"""FreezeOut (Brock et al., 2017): the first layers are frozen one by one, so the need only falls."""

import torch
import torch.nn.functional as F
from torch import nn

blocks = nn.ModuleList(nn.Sequential(nn.Linear(2048, 2048), nn.BatchNorm1d(2048), nn.ReLU()) for _ in range(12)).cuda()
head = nn.Linear(2048, 100).cuda()
optimizer = torch.optim.SGD([*blocks.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
total_steps = 30_000
freeze_at = [int(total_steps * (0.5 + 0.04 * i)) for i in range(len(blocks))]

for step in range(total_steps):
    for index, when in enumerate(freeze_at):
        if step == when:
            for p in blocks[index].parameters():
                p.requires_grad_(False)
                p.grad = None
            print(f"step {step}: block {index} is frozen")
    x = torch.randn(2048, 2048, device="cuda")
    for layer in blocks:
        x = layer(x)
    loss = F.cross_entropy(head(x), torch.randint(100, (2048,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
