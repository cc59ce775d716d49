"""Building blocks of the benchmarks' jobs; importable by name, because they run in the worker's process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def transformers_adafactor(parameters: Iterable[torch.nn.Parameter]) -> Any:
    """Return Adafactor as xMem calls it: with the `relative_step` signature of transformers, not of torch."""
    from transformers.optimization import Adafactor

    return Adafactor(parameters, lr=1e-3, relative_step=False)  # type: ignore[attr-defined,no-untyped-call,unused-ignore]


# Names in GPUMemNet's lists of layers that are not class names of torch.nn.
_LAYERS = {"linear": "Linear", "batch_normalization": "BatchNorm1d", "dropout": "Dropout"}


def mlp(input_features: int, layers: tuple[tuple[str, int], ...], dropout: float) -> torch.nn.Module:
    """Return GPUMemNet's network: `layers` are (name, output features) in order."""
    modules: list[torch.nn.Module] = []
    features = input_features
    for name, output_features in layers:
        layer = getattr(torch.nn, _LAYERS.get(name, name))
        if name == "linear":
            modules.append(layer(features, output_features))
        elif name == "batch_normalization":
            modules.append(layer(output_features))
        elif name == "dropout":
            modules.append(layer(dropout))
        elif name == "Softmax":
            modules.append(layer(dim=1))
        else:
            modules.append(layer())
        features = output_features
    return torch.nn.Sequential(*modules)
