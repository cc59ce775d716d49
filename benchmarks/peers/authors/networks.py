"""Networks of imported histories as modules, for a TARGET such as `benchmarks.peers.authors.networks:mlp?{...}`.

`mlp` and `cnn` are GPUMemNet's (their lists of layers are in `architectures.py`), `collected_*` the first collector's.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.peers.authors import architectures
from benchmarks.peers.authors.architectures import ACTIVATIONS, Convolution, Dense, Plain, Residual, Transition


def mlp(
    inputs: int,
    outputs: int,
    depth: int,
    shape: str,
    activation: str = "relu",
    dropout: float | None = None,
    batch_norm: bool = False,
    last: str | None = None,
) -> nn.Module:
    """Return GPUMemNet's MLP for samples of `inputs` features; the arguments are those of `architectures.mlp_layers`."""
    modules: list[nn.Module] = []
    before = inputs
    for width in architectures.mlp_widths(inputs, outputs, depth, shape):
        modules.append(nn.Linear(before, width))
        modules += [nn.BatchNorm1d(width)] if batch_norm else []
        modules.append(_activation(activation))
        modules += [] if dropout is None else [nn.Dropout(dropout)]
        before = width
    modules.append(nn.Linear(before, outputs))
    ends: dict[str, nn.Module] = {"Softmax": nn.Softmax(dim=1), "Sigmoid": nn.Sigmoid(), "Identity": nn.Identity()}
    return nn.Sequential(*modules, *([ends[last]] if last else []))


def cnn(
    channels: int,
    classes: int,
    depth: int,
    shape: str,
    filters: int,
    size: int,
    activation: str = "relu",
    dropout: float | None = None,
    batch_norm: bool = False,
    interval: int = architectures.FIXED_INTERVAL,
) -> nn.Module:
    """Return GPUMemNet's CNN for square images; the arguments are those of `architectures.cnn_blocks`."""

    def layers(convolution: Convolution, name: str | None = activation, drops: float | None = dropout) -> nn.Sequential:
        modules: list[nn.Module] = [
            nn.Conv2d(
                convolution.inputs,
                convolution.outputs,
                convolution.kernel,
                convolution.stride,
                padding=convolution.kernel // 2,
            )
        ]
        modules += [nn.BatchNorm2d(convolution.outputs)] if batch_norm else []
        modules += [_activation(name)] if name else []
        modules += [] if drops is None else [nn.Dropout(drops)]
        return nn.Sequential(*modules)

    blocks = architectures.cnn_blocks(channels, depth, shape, filters, size, interval)
    built: list[nn.Module] = []
    for block in blocks:
        match block:
            case Plain(convolution):
                built.append(layers(convolution))
            case Residual(shortcut, first, second):
                beside = layers(shortcut, None, None) if shortcut else nn.Identity()
                built.append(_Sum(beside, nn.Sequential(layers(first), layers(second))))
            case Dense(convolutions):
                built.append(_Concatenation([layers(convolution) for convolution in convolutions]))
            case Transition(convolution):
                built.append(nn.Sequential(layers(convolution, "relu", None), _HalvedUnlessOnePixel()))
    head = nn.Linear(architectures.channels_after(blocks, channels), classes)
    end: nn.Module = nn.Softmax(dim=1) if classes > 1 else nn.Sigmoid()
    return nn.Sequential(*built, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head, end)


def _activation(name: str) -> nn.Module:
    module = getattr(nn, ACTIVATIONS[name])()
    assert isinstance(module, nn.Module)
    return module


class _Sum(nn.Module):
    """A shortcut, which runs first, and the layers added to it."""

    def __init__(self, shortcut: nn.Module, body: nn.Module) -> None:
        super().__init__()
        self.shortcut = shortcut
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        kept = self.shortcut(x)
        total: torch.Tensor = self.body(x) + kept
        return total


class _Concatenation(nn.Module):
    """Layers that each read the channels of all before them."""

    def __init__(self, layers: list[nn.Sequential]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return all channels."""
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


class _HalvedUnlessOnePixel(nn.Module):
    """Average pooling by 2 if the size allows it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` with half its height and width."""
        return nn.functional.avg_pool2d(x, 2) if min(x.shape[2:]) > 1 else x


# The first collector's ----------------------------------------------------------------------------------------------


def collected_mlp(inputs: int, outputs: int, depth: int, shape: str, batch_norm: bool, dropout: bool) -> nn.Module:
    """Return its MLP: widths of 1024 (`uniform`), falling from 2048 (`pyramid`), or alternating 128 and 2048 (`bottleneck`)."""
    modules: list[nn.Module] = []
    before = inputs
    for i in range(depth):
        width = {"uniform": 1024, "pyramid": max(32, 2048 >> i), "bottleneck": 2048 if i % 2 else 128}[shape]
        modules.append(nn.Linear(before, width))
        modules += [nn.BatchNorm1d(width)] if batch_norm else []
        modules.append(nn.ReLU())
        modules += [nn.Dropout(0.3)] if dropout else []
        before = width
    return nn.Sequential(*modules, nn.Linear(before, outputs))


def collected_cnn(depth: int, filters: int, shape: str, kernel: int, size: int, batch_norm: bool, dropout: bool) -> nn.Module:
    """Return its CNN for images of 3 channels and 100 classes: pooled by 2 after every sixth convolution above 7 pixels."""
    modules: list[nn.Module] = []
    before = 3
    for i in range(depth):
        width = min(filters << (i // 6), 1024) if shape == "pyramid" else filters
        groups = before if shape == "grouped" and before == width else 1
        parts: list[nn.Module] = [nn.Conv2d(before, width, kernel, padding=kernel // 2, groups=groups)]
        parts += [nn.BatchNorm2d(width)] if batch_norm else []
        parts.append(nn.ReLU())
        parts += [nn.Dropout2d(0.2)] if dropout else []
        modules.append(_Skip(*parts) if shape == "residual" and before == width else nn.Sequential(*parts))
        before = width
        if i % 6 == 5 and size > 7:
            modules.append(nn.MaxPool2d(2))
            size //= 2
    return nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 100))


class _Skip(nn.Sequential):
    """Layers whose input is added to their output."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        output = input
        for module in self:
            output = module(output)
        return output + input


class collected_transformer(nn.Module):
    """Its transformer: token and position embeddings, post-norm encoder, mean over the tokens, 10 classes."""

    def __init__(self, width: int, layers: int, heads: int, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(1, tokens, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the scores of ids of shape (batch, tokens)."""
        scores: torch.Tensor = self.head(self.encoder(self.embedding(ids) + self.position).mean(1))
        return scores
