"""Models of the golden jobs, one of each kind that the registries lack."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def mlp() -> nn.Module:
    wide = (nn.Linear(1024, 2048), nn.GELU(), nn.Dropout(0.1), nn.Linear(2048, 1024))
    return nn.Sequential(*wide, nn.ReLU(), nn.Linear(1024, 10))


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


def lstm() -> nn.Module:
    return _Lstm()


class _UNet(nn.Module):
    """Depthwise, grouped, dilated and transposed convolutions with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(32, 64, 3, stride=2, padding=1, groups=4), nn.BatchNorm2d(64), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(64, 64, 3, padding=2, dilation=2), nn.Conv2d(64, 64, 5, padding=2, groups=64))
        self.up = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.last = nn.Conv2d(64, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return self.last(torch.cat([first, self.up(self.deep(self.down(first)))], dim=1))


def unet() -> nn.Module:
    return _UNet()


class _Moe(nn.Module):
    """A mixture of experts that gathers each expert's rows: shapes depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(256, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(-1)
            out = out.index_add(0, rows, expert(x[rows]))
        return out


def moe() -> nn.Module:
    return _Moe()


class _Select(nn.Module):
    """A selection of elements of a large tensor by a mask, so that only the largest size is known."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1024, 1024)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return functional.relu(y[y > 0.5]).mean()


def select() -> nn.Module:
    return _Select()
