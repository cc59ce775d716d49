"""A CNN with a GradScaler, channels last, a data loader and a scheduler."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(
    nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(2),
    nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(inplace=True),
    nn.Conv2d(128, 128, 3, padding=1, groups=128), nn.Conv2d(128, 256, 1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
)  # fmt: skip
model = model.to("cuda", memory_format=torch.channels_last)
loader = DataLoader(TensorDataset(torch.rand(80, 3, 96, 96), torch.randint(10, (80,))), batch_size=32, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
scaler = torch.amp.GradScaler("cuda")
for _epoch in range(3):
    for images, labels in loader:
        images, labels = images.to("cuda", memory_format=torch.channels_last), labels.cuda()
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    schedule.step()
