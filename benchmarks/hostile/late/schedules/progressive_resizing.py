"""Progressive resizing of images by epoch (fast.ai, DAWNBench): small images first, full resolution at the end."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

EPOCHS = 30
STAGES = {0: 64, 10: 128, 20: 224, 26: 448}


class Images(Dataset):
    size = 64

    def __len__(self):
        return 6_400

    def __getitem__(self, index):
        return torch.zeros(3, self.size, self.size), index % 100


def conv(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, 2, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU())


net = nn.Sequential(conv(3, 64), conv(64, 128), conv(128, 256), conv(256, 512), nn.AdaptiveAvgPool2d(1), nn.Flatten())
net.append(nn.Linear(512, 100))
net = net.cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.4, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, total_steps=EPOCHS * 33)
images = Images()
for epoch in tqdm(range(EPOCHS)):
    if epoch in STAGES:
        images.size = STAGES[epoch]
        loader = DataLoader(images, batch_size=192, shuffle=True, drop_last=True)
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
