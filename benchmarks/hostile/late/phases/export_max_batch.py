"""Train, then export: the model is traced with the largest batch of the server, whose shapes the engine is built for."""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

MAX_SERVING_BATCH = 256


def block(i, o, stride):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


model = nn.Sequential(
    block(3, 64, 1), block(64, 64, 1), block(64, 128, 2), block(128, 256, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(256, 1000),
).cuda()  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[6_000, 9_000])
for _ in range(10_000):
    images = torch.randn(4, 3, 224, 224, device="cuda")
    loss = F.cross_entropy(model(images), torch.randint(1000, (4,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()

model.eval()
example = torch.randn(MAX_SERVING_BATCH, 3, 224, 224, device="cuda")
exported = torch.jit.trace(model, example, check_trace=False)
exported.save(str(Path(tempfile.mkdtemp()) / "model.pt"))
