"""GPUMemNet's random networks as lists of layers, from their settings alone: no torch, no modules.

The rules for the widths come from the file names and the lists of layers in the data (and from the public generator, which is
reimplemented here). A list is in the order in which the layers run, as in its rows. `networks.py` builds the modules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_FILTERS: Final = 2048  # spec: GPUMemNet, maximum width of convolutions
GROWTH: Final = 32  # spec: GPUMemNet, channels that each layer of a dense block adds
DENSE_LAYERS: Final = 4  # spec: GPUMemNet, layers of a dense block
TARGET_SIZE: Final = 7  # spec: GPUMemNet, size in pixels at which strides end
FIXED_INTERVAL: Final = 5  # spec: GPUMemNet, the alternative interval of transitions; a coin chooses

# File name -> class in torch.nn; the lists have the class's name.
ACTIVATIONS: Final = {
    "relu": "ReLU", "leaky_relu": "LeakyReLU", "prelu": "PReLU", "elu": "ELU", "selu": "SELU", "gelu": "GELU", "tanh": "Tanh",
    "softplus": "Softplus", "swish": "SiLU", "mish": "Mish", "identity": "Identity",
}  # fmt: skip
MLP_SHAPES: Final = ("pyramid", "uniform", "bottleneck", "gradual")
CNN_SHAPES: Final = ("pyramid", "uniform", "bottleneck", "gradual", "hourglass", "residual", "dense")


@dataclass(frozen=True, slots=True)
class Layer:
    """A line of a list: name, elements of its output for one sample, parameters (PReLU's single one is not counted there)."""

    name: str
    activations: int
    parameters: int = 0


# MLPs ---------------------------------------------------------------------------------------------------------------


def mlp_widths(inputs: int, outputs: int, depth: int, shape: str) -> list[int]:
    """Return the widths of the hidden layers.

    Args:
        inputs: Features of a sample.
        outputs: Number of classes; no layer is narrower.
        depth: Depth in the file name; `bottleneck` has one layer more.
        shape: One of MLP_SHAPES.
    """
    if shape == "uniform":
        return [inputs] * depth
    step = (inputs - outputs) // depth if depth else 0
    widths = []
    width = inputs
    for _ in range(depth + (shape == "bottleneck")):
        width = max(width - step if shape == "gradual" else width // 2, outputs)
        widths.append(width)
    return widths


def mlp_layers(
    inputs: int, outputs: int, depth: int, shape: str, activation: str, *, dropout: bool, batch_norm: bool, last: str | None
) -> list[Layer]:
    """Return an MLP's list; `last` is the class after the last linear layer."""
    layers = []
    width_before = inputs
    for width in mlp_widths(inputs, outputs, depth, shape):
        layers.append(Layer("linear", width, (width_before + 1) * width))
        layers += [Layer("batch_normalization", width, 2 * width)] * batch_norm
        layers.append(Layer(ACTIVATIONS[activation], width))
        layers += [Layer("dropout", width)] * dropout
        width_before = width
    layers.append(Layer("linear", outputs, (width_before + 1) * outputs))
    return layers + ([Layer(last, outputs)] if last else [])


# CNNs ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution with its batch norm, activation, and dropout, if any; `size` is that of its output."""

    inputs: int
    outputs: int
    size: int
    kernel: int = 3
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Plain:
    """A block with a single convolution."""

    convolution: Convolution


@dataclass(frozen=True, slots=True)
class Residual:
    """Two convolutions with a shortcut, which is a 1x1 convolution if the shape changes."""

    shortcut: Convolution | None
    first: Convolution
    second: Convolution


@dataclass(frozen=True, slots=True)
class Dense:
    """Convolutions that each read all channels before them."""

    convolutions: tuple[Convolution, ...]


@dataclass(frozen=True, slots=True)
class Transition:
    """A 1x1 convolution with ReLU, then average pooling by 2 if more than one pixel is left."""

    convolution: Convolution


Block = Plain | Residual | Dense | Transition


def transition_intervals(depth: int, size: int) -> tuple[int, ...]:
    """Return the possible numbers of dense blocks between transitions: a coin of the generator decides."""
    halvings = max(1, int(math.log2(max(1, size // TARGET_SIZE))))
    return tuple(dict.fromkeys((max(1, math.ceil(depth / halvings)), FIXED_INTERVAL)))


def cnn_blocks(channels: int, depth: int, shape: str, filters: int, size: int, interval: int) -> list[Block]:
    """Return a CNN's blocks; pooling and a linear layer follow.

    Args:
        channels: Channels of the image.
        depth: Depth in the file name.
        shape: One of CNN_SHAPES.
        filters: Filters of the first layer.
        size: Pixels on each side of the image.
        interval: A value of `transition_intervals`; only `dense` has transitions.
    """
    if shape == "residual":
        return list(_residual_blocks(channels, depth, filters, size))
    if shape == "dense":
        return list(_dense_blocks(channels, depth, size, interval))
    blocks: list[Block] = []
    for width in cnn_widths(depth, shape, filters):
        blocks.append(Plain(Convolution(channels, width, size)))
        channels = width
    return blocks


def cnn_widths(depth: int, shape: str, filters: int) -> list[int]:
    """Return the widths of a CNN without branches: geometric series from `filters` towards MAX_FILTERS."""
    return [_width(depth, shape, filters, i) for i in range(depth)]


def _width(depth: int, shape: str, filters: int, i: int) -> int:
    half = depth // 2
    if shape == "uniform":
        return filters
    if shape == "bottleneck":
        return 2 * filters if i == 0 else _grown(filters, depth - 1, i - 1, default=2)
    if shape == "hourglass":
        return _grown(filters, half, i) if i < half else max(_grown(filters, depth - half, depth - i - 1), filters)
    return _grown(filters, depth if shape == "pyramid" else 2 * depth, i)  # gradual grows half as fast


def _grown(filters: int, steps: int, i: int, default: float | None = None) -> int:
    """Return term `i` of the series that reaches MAX_FILTERS after `steps`; two layers of a bottleneck double instead."""
    ratio = default if default is not None and steps <= 1 else (MAX_FILTERS / filters) ** (1 / steps)
    return min(int(filters * ratio**i), MAX_FILTERS)


def _residual_blocks(channels: int, depth: int, filters: int, size: int) -> Iterator[Block]:
    nominal = size  # strides end by the exactly halved size; a convolution rounds up
    for i in range(depth // 2):
        width = _grown(filters, depth, i)
        stride = 2 if i % 2 and nominal > TARGET_SIZE else 1
        if stride == 2:
            nominal, size = nominal // 2, -(-size // 2)
        changes = channels != width or stride != 1
        yield Residual(
            Convolution(channels, width, size, 1, stride) if changes else None,
            Convolution(channels, width, size, 3, stride),
            Convolution(width, width, size),
        )
        channels = width
        if nominal <= TARGET_SIZE:
            return


def _dense_blocks(channels: int, depth: int, size: int, interval: int) -> Iterator[Block]:
    count = depth // 4
    for i in range(count):
        yield Dense(tuple(Convolution(channels + k * GROWTH, GROWTH, size) for k in range(DENSE_LAYERS)))
        channels += DENSE_LAYERS * GROWTH
        if i % interval == 0 and i != count - 1:
            yield Transition(Convolution(channels, channels // 2, size, kernel=1))
            channels //= 2
            size = size // 2 if size > 1 else size


def channels_after(blocks: list[Block], channels: int) -> int:
    """Return the output channels of the last block, or the image's without blocks."""
    for block in blocks:
        match block:
            case Plain(convolution) | Transition(convolution):
                channels = convolution.outputs
            case Residual(second=convolution):
                channels = convolution.outputs
            case Dense(convolutions):
                channels = convolutions[0].inputs + len(convolutions) * GROWTH
    return channels


def cnn_layers(
    blocks: list[Block], channels: int, classes: int, activation: str, *, dropout: bool, batch_norm: bool
) -> list[Layer]:
    """Return a CNN's list."""
    layers: list[Layer] = []

    def add(convolution: Convolution, *, name: str | None = activation, drops: bool = dropout) -> None:
        elements = convolution.outputs * convolution.size**2
        weights = (convolution.inputs * convolution.kernel**2 + 1) * convolution.outputs
        layers.append(Layer("conv2d", elements, weights))
        layers.extend([Layer("batchnorm2d", elements, 2 * convolution.outputs)] * batch_norm)
        if name:
            layers.append(Layer(ACTIVATIONS[name], elements))
        layers.extend([Layer("dropout", elements)] * drops)

    for block in blocks:
        match block:
            case Plain(convolution):
                add(convolution)
            case Residual(shortcut, first, second):
                if shortcut:
                    add(shortcut, name=None, drops=False)
                add(first)
                add(second)
            case Dense(convolutions):
                for convolution in convolutions:
                    add(convolution)
            case Transition(convolution):
                add(convolution, name="relu", drops=False)
    width = channels_after(blocks, channels)
    layers += [Layer("adaptive_avg_pool2d", width), Layer("linear", classes, (width + 1) * classes)]
    return [*layers, Layer("softmax" if classes > 1 else "sigmoid", classes)]
