"""Widths of a network's layers, computed without torch, so that a draw can add them up."""

from __future__ import annotations

MLP_SHAPES = ("uniform", "pyramid", "bottleneck", "residual", "dense")
CNN_SHAPES = (*MLP_SHAPES, "separable")
_NARROWEST = 8  # arbitrary


def layer_widths(shape: str, width: int, depth: int) -> list[int]:
    """Return the output width of each of `depth` hidden layers of a perceptron.

    uniform, residual: always `width`. pyramid: from `width` down in equal ratios to an eighth. bottleneck: alternately
    `width` and a quarter of it. dense: a `depth`-th of `width` each, because every layer's output is passed to all later
    ones.
    """
    if shape == "pyramid":
        return [max(_NARROWEST, round(width / 8 ** (layer / max(1, depth - 1)))) for layer in range(depth)]
    if shape == "bottleneck":
        return [max(_NARROWEST, width // 4) if layer % 2 else width for layer in range(depth)]
    if shape == "dense":
        return [max(_NARROWEST, width // depth)] * depth
    return [width] * depth


def stage_widths(shape: str, width: int, stages: int) -> list[int]:
    """Return the channels of each stage of a convolutional network; they double, unless it is uniform or dense."""
    return [width if shape in ("uniform", "dense") else width * 2**stage for stage in range(stages)]
