"""Random networks: factories with plain keyword arguments, for TARGETs (`...networks:mlp?{"inputs": 784, ...}`)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.datasets.workloads.network_shapes import layer_widths, stage_widths

_GROUPS = 8  # arbitrary: groups of a group norm, if they divide the width
_ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU}
_BATCH_NORMS: dict[int, Any] = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class _Residual(nn.Sequential):
    """Adds the layers' output to the input."""

    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


class _Dense(nn.Sequential):
    """Concatenates the input and the layers' output."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat((input, super().forward(input)), dim=1)


def _dropout(probability: float) -> list[nn.Module]:
    return [nn.Dropout(probability)] if probability else []


def _norm(norm: str, width: int, dimensions: int = 0) -> list[nn.Module]:
    """Return the norm for this many features, or for channels with further dimensions."""
    if norm == "batch":
        return [_BATCH_NORMS[dimensions](width)]
    if norm == "layer":
        return [nn.GroupNorm(1, width) if dimensions else nn.LayerNorm(width)]
    return [nn.GroupNorm(math.gcd(_GROUPS, width), width)] if norm == "group" else []


# ------------------------------------------------------------------------------------------------ perceptrons
def mlp(
    inputs: int,
    outputs: int,
    width: int,
    depth: int,
    shape: str = "uniform",
    norm: str = "none",
    activation: str = "relu",
    dropout: float = 0.0,
) -> nn.Module:
    """Return a multi-layer perceptron, N x inputs -> N x outputs.

    Args:
        inputs: Features of a sample.
        outputs: Classes, or values to regress.
        width: Width of the widest hidden layer.
        depth: Number of hidden layers.
        shape: One of `shapes.MLP_SHAPES`.
        norm: Norm after each hidden layer: none, batch, layer, group.
        activation: relu, gelu, silu, tanh, leaky_relu, elu.
        dropout: Its probability; 0: no such layer.
    """
    layers: list[nn.Module] = []
    features = inputs
    for wide in layer_widths(shape, width, depth):
        parts = [nn.Linear(features, wide), *_norm(norm, wide), _ACTIVATIONS[activation](), *_dropout(dropout)]
        if shape == "dense":
            layers.append(_Dense(*parts))
            features += wide
        else:
            layers.append(_Residual(*parts) if shape == "residual" and features == wide else nn.Sequential(*parts))
            features = wide
    return nn.Sequential(*layers, nn.Linear(features, outputs))


# ------------------------------------------------------------------------------------------------ convolutions
_CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_MAX_POOLS: dict[int, Any] = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


def cnn(
    outputs: int,
    width: int,
    stages: int,
    blocks: int,
    shape: str = "residual",
    kernel: int = 3,
    norm: str = "batch",
    activation: str = "relu",
    dropout: float = 0.0,
    inputs: int = 3,
    dimensions: int = 2,
    pool: bool = False,
    dense_outputs: bool = False,
) -> nn.Module:
    """Return a convolutional network, N x inputs x size... -> N x outputs, or N x outputs x size... with `dense_outputs`.

    Args:
        outputs: Classes.
        width: Number of channels of the first stage.
        stages: Number of parts of equal resolution; each halves the one before.
        blocks: Number of blocks in a stage, after its first convolution.
        shape: One of `shapes.CNN_SHAPES`: the kind of block, and whether stages get wider.
        kernel: Side of the kernel, odd.
        norm: Norm after each convolution: none, batch, layer (a group norm of one group), group.
        activation: As in `mlp`.
        dropout: Its probability after each block; 0: no such layer.
        inputs: Channels of the input.
        dimensions: 1, 2 or 3.
        pool: Whether max pooling halves the resolution, else a stride.
        dense_outputs: Whether there is an output for each pixel, as in segmentation.
    """

    def convolution(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
        plain = _CONVOLUTIONS[dimensions](
            inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=norm == "none"
        )
        return nn.Sequential(plain, *_norm(norm, outputs, dimensions), _ACTIVATIONS[activation]())

    layers: list[nn.Module] = []
    features = inputs
    for stage, wide in enumerate(stage_widths(shape, width, stages)):
        if stage and pool:
            layers.append(_MAX_POOLS[dimensions](2))
        layers.append(convolution(features, wide, kernel, stride=2 if stage and not pool else 1))
        features = wide
        for _ in range(blocks):
            if shape == "residual":
                layers.append(_Residual(convolution(wide, wide, kernel), convolution(wide, wide, kernel)))
            elif shape == "bottleneck":
                thin = max(1, wide // 4)
                parts = (convolution(wide, thin, 1), convolution(thin, thin, kernel), convolution(thin, wide, 1))
                layers.append(_Residual(*parts))
            elif shape == "separable":
                layers += [convolution(wide, wide, kernel, groups=wide), convolution(wide, wide, 1)]
            elif shape == "dense":
                layers.append(_Dense(convolution(features, wide, kernel)))
                features += wide
            else:
                layers.append(convolution(wide, wide, kernel))
            layers += _dropout(dropout)
    if dense_outputs:
        up = nn.Upsample(scale_factor=2 ** (stages - 1), mode=_MODES[dimensions])
        return nn.Sequential(*layers, _CONVOLUTIONS[dimensions](features, outputs, 1), up)
    return nn.Sequential(*layers, _MeanOfPixels(), nn.Linear(features, outputs))


class _MeanOfPixels(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        return input.flatten(2).mean(2)


# ------------------------------------------------------------------------------------------------ transformers
def transformer(
    vocabulary: int,
    width: int,
    depth: int,
    heads: int,
    tokens: int,
    outputs: int = 0,
    feedforward: int = 0,
    attention: str = "sdpa",
    causal: bool = False,
    norm: str = "layer",
    norm_first: bool = True,
    gated: bool = False,
    activation: str = "gelu",
    dropout: float = 0.0,
) -> nn.Module:
    """Return a transformer over token ids, N x tokens -> N x tokens x vocabulary, or N x outputs of the whole text.

    Args:
        vocabulary: Number of token ids.
        width: Width of a token; a multiple of `heads`.
        depth: Number of layers.
        heads: Number of attention heads.
        tokens: Number of tokens of a text.
        outputs: Classes of the whole text; 0: the next token's scores instead.
        feedforward: Width of the inner layer; 0: four times `width`.
        attention: sdpa (torch's fused attention), eager (its product written out), torch (nn.TransformerEncoderLayer, which
            ignores the arguments `norm`, `gated` and `causal`).
        causal: Whether each token attends only to those before it.
        norm: layer, rms.
        norm_first: Whether norms come before attention and feed-forward, else after them.
        gated: Whether the inner layer is multiplied by a gate of its own.
        activation: As in `mlp`; with `attention="torch"` relu or gelu.
        dropout: Its probability.
    """
    feedforward = feedforward or 4 * width

    def layer() -> nn.Module:
        if attention == "torch":
            return nn.TransformerEncoderLayer(
                width, heads, feedforward, dropout, activation, batch_first=True, norm_first=norm_first
            )
        mixing = _Attention(width, heads, attention == "eager", causal, dropout)
        inner = (_Gated if gated else _FeedForward)(width, feedforward, activation)
        branches = [nn.Sequential(part, *_dropout(dropout)) for part in (mixing, inner)]
        return nn.Sequential(*(_Branch(branch, _token_norm(norm, width), norm_first) for branch in branches))

    head = _MeanOfTokens(width, outputs) if outputs else nn.Linear(width, vocabulary)
    return nn.Sequential(_Tokens(vocabulary, width, tokens), *(layer() for _ in range(depth)), _token_norm(norm, width), head)


def _token_norm(norm: str, width: int) -> nn.Module:
    return nn.RMSNorm(width) if norm == "rms" else nn.LayerNorm(width)


class _Tokens(nn.Module):
    """Token ids as vectors, plus a vector for each position."""

    def __init__(self, vocabulary: int, width: int, tokens: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(tokens, width))

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.places


class _Branch(nn.Module):
    """A branch of the residual stream, with its norm."""

    def __init__(self, branch: nn.Module, norm: nn.Module, norm_first: bool) -> None:
        super().__init__()
        self.branch, self.norm, self.norm_first = branch, norm, norm_first

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = input + self.branch(self.norm(input)) if self.norm_first else self.norm(input + self.branch(input))
        return output


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, eager: bool, causal: bool, dropout: float) -> None:
        super().__init__()
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.eager, self.causal, self.dropout = heads, eager, causal, dropout

    def forward(self, input: Tensor) -> Tensor:
        queries, keys, values = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(input).chunk(3, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        if self.eager:
            mixed = self._eager(queries, keys, values, dropout)
        else:
            mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, None, dropout, self.causal)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _eager(self, queries: Tensor, keys: Tensor, values: Tensor, dropout: float) -> Tensor:
        scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])
        if self.causal:
            later = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return nn.functional.dropout(scores.softmax(dim=3), dropout) @ values


class _FeedForward(nn.Sequential):
    def __init__(self, width: int, feedforward: int, activation: str) -> None:
        super().__init__(nn.Linear(width, feedforward), _ACTIVATIONS[activation](), nn.Linear(feedforward, width))


class _Gated(nn.Module):
    def __init__(self, width: int, feedforward: int, activation: str) -> None:
        super().__init__()
        self.inner, self.gate = nn.Linear(width, feedforward), nn.Linear(width, feedforward)
        self.activation, self.output = _ACTIVATIONS[activation](), nn.Linear(feedforward, width)

    def forward(self, input: Tensor) -> Tensor:
        return self.output(self.inner(input) * self.activation(self.gate(input)))


class _MeanOfTokens(nn.Module):
    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, outputs)

    def forward(self, input: Tensor) -> Tensor:
        return self.linear(input.mean(1))
