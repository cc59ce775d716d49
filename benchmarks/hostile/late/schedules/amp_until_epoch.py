"""Mixed precision for most epochs, then full precision for the last ones, in which small gradients matter."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 60
FULL_PRECISION_FROM = 50

layers = [nn.Conv2d(3, 128, 3, 1, 1), nn.ReLU()]
for _ in range(8):
    layers += [nn.Conv2d(128, 128, 3, 1, 1), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
scaler = torch.amp.GradScaler("cuda")
images = TensorDataset(torch.zeros(8192, 3, 32, 32), torch.zeros(8192, dtype=torch.long))
loader = DataLoader(images, batch_size=1536, shuffle=True, pin_memory=True, drop_last=True)

for epoch in range(EPOCHS):
    use_amp = epoch < FULL_PRECISION_FROM
    for x, y in loader:
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.float16, enabled=use_amp):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    scheduler.step()
