"""Small jobs that use cuDNN outside its convolution engines: attention, and the older calls.

Targets of `benchmarks.hardware.cudnn_engines`, for example `benchmarks/hardware/cudnn_layers.py:attention`; a batch is
8x1024x512 floats.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


class Attention(nn.Module):
    """Eight heads of 64 in half precision, through cuDNN; forward and backward are graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(512, 3 * 512, dtype=torch.float16)

    def forward(self, x: Tensor) -> Tensor:
        """Return a single number."""
        query, key, value = self.project(x.half()).view(8, 1024, 24, 64).transpose(1, 2).chunk(3, 1)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return nn.functional.scaled_dot_product_attention(query, key, value).float().sum()


class Recurrent(nn.Module):
    """An LSTM: libcudnn_adv's older calls, which need a handle and so a device."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(512, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return a single number."""
        total: Tensor = self.layers(x)[0].sum()
        return total


class BatchNorm(nn.Module):
    """Batch normalization in channels last: libcudnn_ops' older calls, which need a handle."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(64)

    def forward(self, x: Tensor) -> Tensor:
        """Return a single number."""
        image = x.view(8, 64, 64, 128).to(memory_format=torch.channels_last).half()
        total: Tensor = self.norm(image).float().sum()
        return total


class Ctc(nn.Module):
    """A CTC loss as cuDNN takes it (targets in a row, all on the card): libcudnn_adv's older calls, which need a handle."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(512, 20)

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        scores = self.project(x[:, :50]).transpose(0, 1).log_softmax(2)
        targets, given, wanted = (
            torch.full((n,), value, dtype=torch.int32, device=x.device) for n, value in ((80, 1), (8, 50), (8, 10))
        )
        return nn.functional.ctc_loss(scores, targets, given, wanted)


def attention() -> nn.Module:
    """Return the job's model."""
    return Attention()


def recurrent() -> nn.Module:
    """Return the job's model."""
    return Recurrent()


def batch_norm() -> nn.Module:
    """Return the job's model."""
    return BatchNorm()


def ctc() -> nn.Module:
    """Return the job's model."""
    return Ctc()
