"""Facts about optimizers that need no torch: `adamw`, `sgdm`, `adamw:fused=true`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A class of torch.optim.

    Attributes:
        state_tensors: Number of tensors of each parameter's size that it keeps from its first step on.
        state_options: Options that each add one such tensor if set.
        is_fusable: Whether it accepts `fused=True`.
    """

    state_tensors: int
    state_options: tuple[str, ...] = ()
    is_fusable: bool = False


# spec: torch 2.11, torch.optim (a test compares with torch); only the optimizers that other code needs.
OPTIMIZERS: Final = {
    "sgd": Optimizer(0, ("momentum",), is_fusable=True),
    "adam": Optimizer(2, ("amsgrad",), is_fusable=True),
    "adamw": Optimizer(2, ("amsgrad",), is_fusable=True),
    "adagrad": Optimizer(1, is_fusable=True),
    "rmsprop": Optimizer(1, ("momentum", "centered")),
}
SHORT_NAMES: Final[dict[str, tuple[str, dict[str, Any]]]] = {"sgdm": ("sgd", {"momentum": 0.9})}


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Parse text such as `adamw:fused=true` into a class's name in lower case and its options.

    Raises:
        UsageError: An option is not key=value with a JSON value.
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
    """Return whether an optimizer is known to accept `fused=True`."""
    name, _ = parse(text)
    return name in OPTIMIZERS and OPTIMIZERS[name].is_fusable


def state_tensors(text: str) -> int:
    """Return the number of tensors of each parameter's size that an optimizer of the table keeps with its options."""
    name, options = parse(text)
    optimizer = OPTIMIZERS[name]
    return optimizer.state_tensors + sum(bool(options.get(option)) for option in optimizer.state_options)
