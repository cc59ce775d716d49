"""Facts about optimizers that need no torch: `adamw`, `sgdm`, `adamw:fused=true`, `paged_adamw_8bit`, `module:Class`."""

from __future__ import annotations

import json
import re
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
_BNB: Final = "bitsandbytes.optim"
_EIGHT: Final = {"optim_bits": 8}
_PAGED: Final = {"is_paged": True}
# Other names, each of a class of torch.optim or a module:Class. spec: transformers 5.17, TrainingArguments.optim and
# trainer_optimizer.py, except `sgdm` and the spellings without an underscore.
SHORT_NAMES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "sgdm": ("sgd", {"momentum": 0.9}),
    "adamw_torch": ("adamw", {}),
    "adamw_torch_fused": ("adamw", {"fused": True}),
    "adamw_torch_8bit": ("torchao.optim:AdamW8bit", {}),
    "adamw_torch_4bit": ("torchao.optim:AdamW4bit", {}),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "adamw8bit"), (f"{_BNB}:AdamW", _EIGHT)),
    **dict.fromkeys(("paged_adamw_32bit", "paged_adamw"), (f"{_BNB}:AdamW", _PAGED)),
    "paged_adamw_8bit": (f"{_BNB}:AdamW", _EIGHT | _PAGED),
    **dict.fromkeys(("lion_32bit", "lion"), (f"{_BNB}:Lion", {})),
    "lion_8bit": (f"{_BNB}:Lion", _EIGHT),
    **dict.fromkeys(("paged_lion_32bit", "paged_lion"), (f"{_BNB}:Lion", _PAGED)),
    "paged_lion_8bit": (f"{_BNB}:Lion", _EIGHT | _PAGED),
    "ademamix": (f"{_BNB}:AdEMAMix", {}),
    "ademamix_8bit": (f"{_BNB}:AdEMAMix", _EIGHT),
    "paged_ademamix_32bit": (f"{_BNB}:AdEMAMix", _PAGED),
    "paged_ademamix_8bit": (f"{_BNB}:AdEMAMix", _EIGHT | _PAGED),
    **dict.fromkeys(("rmsprop_bnb", "rmsprop_bnb_32bit"), (f"{_BNB}:RMSprop", {})),
    "rmsprop_bnb_8bit": (f"{_BNB}:RMSprop", _EIGHT),
}
# module:Class, with a dot in the module or a capital in the class: `adam:fused` lacks a value.
_CODE: Final = re.compile(r"(?P<name>(?:\w+\.[\w.]+:[A-Za-z_]\w*|[A-Za-z_]\w*:[A-Z]\w*))(?::(?P<pairs>.*))?")


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Parse text such as `adamw:fused=true` into a name and options.

    Returns:
        The name of a class of torch.optim in lower case, or `module:Class`; and its options.
    Raises:
        UsageError: An option is not key=value with a JSON value.
    """
    if code := _CODE.fullmatch(text):
        name, pairs = code["name"], code["pairs"] or ""
        options: dict[str, Any] = {}
    else:
        name, _, pairs = text.partition(":")
        name, options = SHORT_NAMES.get(name.lower(), (name.lower(), {}))
    for pair in filter(None, re.split(r",(?=\w+=)", pairs)):  # a list, [0.9,0.95], has commas of its own
        key, _, value = pair.partition("=")
        try:
            options = {**options, key: json.loads(value)}
        except ValueError:
            raise UsageError(f"Optimizer option '{pair}' is not key=value with a JSON value, for example fused=true.") from None
    return name, options


def is_code(text: str) -> bool:
    """Return whether an optimizer is a `module:Class`, which is imported: untrusted data may only give names."""
    return _CODE.fullmatch(text) is not None


def is_fusable(text: str) -> bool:
    """Return whether an optimizer is known to accept `fused=True`."""
    name, _ = parse(text)
    return name in OPTIMIZERS and OPTIMIZERS[name].is_fusable


def state_tensors(text: str) -> int:
    """Return the number of tensors of each parameter's size that an optimizer of the table keeps with its options."""
    name, options = parse(text)
    optimizer = OPTIMIZERS[name]
    return optimizer.state_tensors + sum(bool(options.get(option)) for option in optimizer.state_options)
