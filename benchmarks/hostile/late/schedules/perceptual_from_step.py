"""Super-resolution with a pixel loss first; a perceptual loss through a frozen VGG is added from a step on (Real-ESRGAN)."""

from itertools import cycle

import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset

opt = {"total_iter": 400_000, "perceptual_start": 100_000, "batch_size": 72, "gt_size": 256}


class Pairs(Dataset):
    def __len__(self):
        return 7_200

    def __getitem__(self, index):
        return torch.zeros(3, opt["gt_size"] // 4, opt["gt_size"] // 4), torch.zeros(3, opt["gt_size"], opt["gt_size"])


net = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 48, 3, 1, 1))
net.append(nn.PixelShuffle(4))
net = net.cuda()
vgg = torchvision.models.vgg19(weights=None).features[:35].cuda().eval().requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.9, 0.99))
batches = cycle(DataLoader(Pairs(), opt["batch_size"], shuffle=True, drop_last=True))
current_iter = 0
while current_iter <= opt["total_iter"]:
    current_iter += 1
    low, high = (image.cuda() for image in next(batches))
    output = net(low)
    loss = F.l1_loss(output, high)
    if current_iter > opt["perceptual_start"]:
        loss = loss + 0.1 * F.l1_loss(vgg(output), vgg(high))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
