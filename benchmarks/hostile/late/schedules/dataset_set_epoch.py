"""A detector whose data set receives the epoch: mosaics are closed, and the images become larger, in the last epochs (YOLO)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Coco(Dataset):
    def __init__(self, size, epochs, close=10):
        self.size, self.last = size, epochs - close
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    @property
    def image_size(self):
        return self.size if self.epoch < self.last else 2 * self.size

    def __len__(self):
        return 960

    def __getitem__(self, index):
        return torch.zeros(3, self.image_size, self.image_size)


def conv(i, o, s=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.SiLU(inplace=True))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(conv(3, 32, 2), conv(32, 64, 2), conv(64, 64), conv(64, 128, 2), conv(128, 256, 2))
        self.head = nn.Conv2d(256, 85 * 3, 1)

    def forward(self, x):
        return self.head(self.backbone(x))


epochs = 100
dataset = Coco(320, epochs)
loader = DataLoader(dataset, batch_size=96, shuffle=True)
model = Detector().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
for epoch in range(epochs):
    dataset.set_epoch(epoch)
    model.train()
    for i, images in enumerate(loader):
        loss = model(images.cuda(non_blocking=True)).sigmoid().mean()
        loss.backward()
        if i % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
