"""What an optimizer is, for all who ask before or without torch: `adamw`, `sgdm`, `adamw:fused=true`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A class of torch.optim.

    Attributes:
        state_tensors: How many tensors of each parameter's size it keeps from its first step on.
        state_options: Each of these options, where it is set, adds one.
        is_fusable: Whether it takes `fused=True`.
    """

    state_tensors: int
    state_options: tuple[str, ...] = ()
    is_fusable: bool = False


# spec: torch 2.11, torch.optim (a test asks torch itself); those which somebody asks about.
OPTIMIZERS: Final = {
    "sgd": Optimizer(0, ("momentum",), is_fusable=True),
    "adam": Optimizer(2, ("amsgrad",), is_fusable=True),
    "adamw": Optimizer(2, ("amsgrad",), is_fusable=True),
    "adagrad": Optimizer(1, is_fusable=True),
    "rmsprop": Optimizer(1, ("momentum", "centered")),
}
SHORT_NAMES: Final[dict[str, tuple[str, dict[str, Any]]]] = {"sgdm": ("sgd", {"momentum": 0.9})}


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Return a class's name in lower case and its options, as `adamw:fused=true` says them.

    Raises:
        UsageError: an option is not key=value with a JSON value.
    """
    name, _, pairs = text.partition(":")
    name, options = SHORT_NAMES.get(name.lower(), (name.lower(), {}))
    for pair in filter(None, pairs.split(",")):
        key, _, value = pair.partition("=")
        try:
            options = {**options, key: json.loads(value)}
        except ValueError:
            raise UsageError(f"Optimizer option '{pair}' is not key=value with a JSON value, for example fused=true.") from None
    return name, options


def is_fusable(text: str) -> bool:
    """Return whether an optimizer is known to take `fused=True`."""
    name, _ = parse(text)
    return name in OPTIMIZERS and OPTIMIZERS[name].is_fusable


def state_tensors(text: str) -> int:
    """Return how many tensors of each parameter's size an optimizer of the table keeps, its options counted."""
    name, options = parse(text)
    optimizer = OPTIMIZERS[name]
    return optimizer.state_tensors + sum(bool(options.get(option)) for option in optimizer.state_options)
