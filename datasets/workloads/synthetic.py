"""Draws of random networks (`networks.py`) of all sizes: perceptrons, convolutional networks, transformers."""

from __future__ import annotations

import json
from typing import Any

from vramcast.core.units import GIB
from vramcast.datasets.run import Workload
from vramcast.datasets.workloads.network_shapes import CNN_SHAPES, MLP_SHAPES, layer_widths, stage_widths
from vramcast.datasets.workloads.sampling import Draw
from vramcast.datasets.workloads.sizes import LENGTHS, WIDEST, draw_batch, draw_budget, draw_fitting, largest
from vramcast.datasets.workloads.training_options import draw_training

_PLACE = "vramcast.datasets.workloads.networks"
_ACTIVATIONS = {"relu": 40, "gelu": 20, "silu": 15, "tanh": 10, "leaky_relu": 10, "elu": 5}  # arbitrary
_NORMS = {"none": 30, "batch": 40, "layer": 20, "group": 10}  # arbitrary
_DROPOUTS = {0.0: 60, 0.1: 20, 0.5: 20}  # arbitrary
# Elements kept for backward besides a layer's output, in units of it.
_KEPT_BY_ACTIVATION = {"relu": 0.0, "tanh": 0.0, "gelu": 1.0, "silu": 1.0, "leaky_relu": 0.0, "elu": 0.0}
_MLP_INPUTS = (64, 256, 784, 1024, 3072, 4096, 12288)  # arbitrary: among them MNIST's and CIFAR's pixels
_MLP_CLASSES = (2, 10, 100, 1000, 10_000)  # arbitrary
_MLP_HIGHEST_BYTES = 32 * GIB  # arbitrary: larger perceptrons teach nothing new
_VOCABULARIES = (2048, 10_000, 32_000, 50_257, 128_256)  # arbitrary: the last three are Llama's, GPT-2's and Llama 3's


def target(factory: str, **arguments: Any) -> str:
    """Return the TARGET of a factory in `networks.py` with its arguments."""
    return f"{_PLACE}:{factory}?{json.dumps(arguments, separators=(',', ':'))}"


def _kept(norm: str, activation: str, dropout: float) -> float:
    """Return the elements that a layer and those after it keep for backward, in units of its output."""
    return 1.0 + (norm != "none") + _KEPT_BY_ACTIVATION[activation] + (1.25 if dropout else 0.0)


# ------------------------------------------------------------------------------------------------ perceptrons
def draw_mlp(draw: Draw) -> Workload:
    """Return the training of a perceptron: classification, sometimes regression."""
    training = draw_training(draw)
    budget = draw_budget(draw, _MLP_HIGHEST_BYTES)
    inputs = draw.choice(_MLP_INPUTS) if draw.chance(0.5) else int(draw.log_uniform(16, 16_384))
    outputs = draw.choice(_MLP_CLASSES) if draw.chance(0.5) else int(draw.log_uniform(2, 20_000))
    depth, shape = draw.integer(1, 14), draw.choice(MLP_SHAPES)
    norm, activation, dropout = draw.weighted(_NORMS), draw.weighted(_ACTIVATIONS), draw.weighted(_DROPOUTS)

    def parameters(width: int) -> int:
        features, total = inputs, 0
        for wide in layer_widths(shape, width, depth):
            total += features * wide
            features = features + wide if shape == "dense" else wide
        return total + features * outputs

    width = largest(parameters, budget.parameters(training.bytes_per_parameter), 16, 16_384)
    widths = layer_widths(shape, width, depth)
    joined = sum(inputs + sum(widths[: layer + 1]) for layer in range(depth)) if shape == "dense" else 0
    elements = 2 * inputs + _kept(norm, activation, dropout) * sum(widths) + joined + 3 * outputs
    rest = budget.less(parameters(width) * training.bytes_per_parameter)
    batch = draw_batch(draw, rest.batch_bytes, elements * training.bytes_per_activation, lowest=2, highest=2**20)
    labels = f"{batch}x{outputs}" if draw.chance(0.15) else f"{batch}:int64<{outputs}"
    made = target(
        "mlp", inputs=inputs, outputs=outputs, width=width, depth=depth, shape=shape, norm=norm, activation=activation,
        dropout=dropout,
    )  # fmt: skip
    return training.workload(f"mlp {shape} {width}x{depth}", "mlp", made, (f"{batch}x{inputs}",), labels)


# ------------------------------------------------------------------------------------------------ convolutions
_SIDES = {  # arbitrary: for 1, 2 and 3 dimensions; multiples of 16, because four stages may halve a side
    1: (256, 1024, 4096, 16_384, 65_536),
    2: (32, 48, 64, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512),
    3: (16, 32, 48, 64, 96),
}
_DIMENSIONS = {1: 8, 2: 84, 3: 8}  # arbitrary
_KERNELS = {1: 5, 3: 70, 5: 15, 7: 10}  # arbitrary


def draw_cnn(draw: Draw) -> Workload:
    """Return the training of a convolutional network: classification, sometimes one class for each pixel."""
    dimensions = draw.weighted(_DIMENSIONS)
    training = draw_training(draw, convolves=True, flat=dimensions == 2)
    budget = draw_budget(draw)
    stages, blocks, shape = draw.integer(1, 5), draw.integer(1, 4), draw.choice(CNN_SHAPES)
    kernel = 3 if dimensions == 3 else draw.weighted(_KERNELS)
    norm, activation, dropout = draw.weighted(_NORMS), draw.weighted(_ACTIVATIONS), draw.weighted(_DROPOUTS)
    inputs, outputs = draw.weighted({3: 80, 1: 15, 12: 5}), draw.choice((2, 10, 21, 100, 1000))
    dense_outputs = outputs < 100 and draw.chance(0.3)
    volume = kernel**dimensions

    def parameters(width: int) -> float:
        features, total = inputs, 0.0
        for wide in stage_widths(shape, width, stages):
            total += volume * features * wide + blocks * _block_parameters(shape, wide, blocks, volume)
            features = wide * (1 + blocks) if shape == "dense" else wide
        return total + features * outputs

    # arbitrary: other shapes double by stage
    widest = (512 if shape in ("uniform", "dense") else 128) // (2 if kernel > 3 else 1)
    width = largest(parameters, budget.parameters(training.bytes_per_parameter), 8, widest, 8)
    kept = _kept(norm, activation, 0.0)
    per_pixel = inputs + 0.0  # elements kept for each pixel of the input
    for stage, wide in enumerate(stage_widths(shape, width, stages)):
        block = wide * (_block_outputs(shape, blocks) * kept + (1.25 if dropout else 0.0))
        per_pixel += (wide * kept + blocks * block) / 2 ** (dimensions * stage)
    per_pixel += 3 * outputs if dense_outputs else 0

    def sample_bytes(side: int) -> float:
        return side**dimensions * per_pixel * training.bytes_per_activation

    rest = budget.less(parameters(width) * training.bytes_per_parameter)
    side = draw_fitting(draw, _SIDES[dimensions], rest.batch_bytes, sample_bytes, 2, 512)
    batch = draw_batch(draw, rest.batch_bytes, sample_bytes(side), lowest=2)
    pixels = "x".join([str(side)] * dimensions)
    labels = f"{batch}x{pixels}:int64<{outputs}" if dense_outputs else f"{batch}:int64<{outputs}"
    made = target(
        "cnn", outputs=outputs, width=width, stages=stages, blocks=blocks, shape=shape, kernel=kernel, norm=norm,
        activation=activation, dropout=dropout, inputs=inputs, dimensions=dimensions, pool=draw.chance(0.5),
        dense_outputs=dense_outputs,
    )  # fmt: skip
    name = f"cnn {dimensions}d {shape} {width}x{stages}x{blocks}"
    return training.workload(name, "cnn", made, (f"{batch}x{inputs}x{pixels}",), labels)


def _block_parameters(shape: str, width: int, blocks: int, volume: int) -> float:
    """Return a block's number of weights; `volume` is the kernel's. In a dense stage it is the mean of the blocks."""
    if shape == "residual":
        return 2 * volume * width**2
    if shape == "bottleneck":
        return (0.5 + volume / 16) * width**2
    if shape == "separable":
        return volume * width + width**2
    return volume * width**2 * ((1 + blocks) / 2 if shape == "dense" else 1)


def _block_outputs(shape: str, blocks: int) -> float:
    """Return a block's outputs, including sums and joined inputs, in units of the stage's width."""
    return {"residual": 3.0, "bottleneck": 2.5, "separable": 2.0, "dense": 1 + (1 + blocks) / 2}.get(shape, 1.0)


# ------------------------------------------------------------------------------------------------ transformers
def draw_transformer(draw: Draw) -> Workload:
    """Return the training of a transformer: the next token, sometimes a class for the text."""
    training = draw_training(draw)
    budget = draw_budget(draw)
    vocabulary, depth = draw.choice(_VOCABULARIES), draw.weighted({1: 10, 2: 20, 4: 30, 6: 20, 8: 10, 12: 10})
    attention = draw.weighted({"sdpa": 45, "eager": 25, "torch": 30})
    outputs = draw.choice((2, 10, 1000)) if draw.chance(0.4) else 0
    ratio, gated = draw.choice((2, 4, 4, 8)), attention != "torch" and draw.chance(0.3)
    head = draw.choice((32, 64, 64, 128))
    dropout = draw.weighted(_DROPOUTS)
    matrices = 4 + (3 if gated else 2) * ratio

    def parameters(width: int) -> float:
        return vocabulary * width * (1 if outputs else 2) + depth * matrices * width**2

    width = largest(parameters, budget.parameters(training.bytes_per_parameter), head, WIDEST, head)
    scores = 2 + (1.25 if dropout else 0.0) if attention == "eager" else 0.0

    def sample_bytes(tokens: int) -> float:
        layer = tokens * width * (8 + (3 if gated else 2) * ratio) + scores * width / head * tokens**2
        return (depth * layer + (0 if outputs else 3 * tokens * vocabulary)) * training.bytes_per_activation

    rest = budget.less(parameters(width) * training.bytes_per_parameter)
    tokens = draw_fitting(draw, LENGTHS, rest.batch_bytes, sample_bytes, 1, 256)
    batch = draw_batch(draw, rest.batch_bytes, sample_bytes(tokens))
    plain = attention == "torch"  # nn.TransformerEncoderLayer has no such choices
    made = target(
        "transformer", vocabulary=vocabulary, width=width, depth=depth, heads=width // head, tokens=tokens, outputs=outputs,
        feedforward=ratio * width, attention=attention, causal=not plain and draw.chance(0.5),
        norm="layer" if plain else draw.choice(("layer", "rms")), norm_first=draw.chance(0.7), gated=gated,
        activation=draw.choice(("relu", "gelu")), dropout=dropout,
    )  # fmt: skip
    ids = f"{batch}x{tokens}:int64<{vocabulary}"
    labels = f"{batch}:int64<{outputs}" if outputs else ids
    return training.workload(f"transformer {attention} {width}x{depth}", "transformer", made, (ids,), labels)
