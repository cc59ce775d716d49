"""An optimizer that the caller has made, described without its parameters and made again over the job's own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from vramcast.core.errors import UsageError

_ADVICE = "pass a callable, for example optimizer=lambda parameters: {name}(parameters, lr=1e-3)."


def remade(optimizer: torch.optim.Optimizer, model: Any) -> Callable[..., torch.optim.Optimizer]:
    """Return a callable that makes the same optimizer from the model's trainable parameters.

    Its class, options and groups are kept; its state is not: the first step makes it.

    Raises:
        UsageError: The model is not a module, a parameter is not the model's, or an option cannot be read from the optimizer.
    """
    kind = type(optimizer)
    advice = _ADVICE.format(name=kind.__name__)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"optimizer is a {kind.__name__} over parameters, but the model is a callable that builds one: {advice}"
        )
    places = {id(one): place for place, one in enumerate(p for p in model.parameters() if p.requires_grad)}
    frozen = {id(one) for one in model.parameters() if not one.requires_grad}
    groups = []
    for group in optimizer.param_groups:
        held = [one for one in group["params"] if id(one) not in frozen]
        if foreign := [tuple(one.shape) for one in held if id(one) not in places]:
            raise UsageError(
                f"optimizer holds a parameter of shape {foreign[0]} that is not the model's: make it from "
                "model.parameters() of this model, or " + advice
            )
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append((tuple(places[id(one)] for one in held), options))
    return functools.partial(_made, kind, _arguments(optimizer, advice), tuple(one for one in groups if one[0]))


def _arguments(optimizer: torch.optim.Optimizer, advice: str) -> dict[str, Any]:
    """Return the arguments of the optimizer's class, which its defaults hold."""
    kind = type(optimizer)
    asked = list(inspect.signature(kind).parameters.values())[1:]  # the first takes the parameters
    named = [one.name for one in asked if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if lost := [name for name in named if name not in optimizer.defaults]:
        raise UsageError(f"optimizer is a {kind.__name__}, which does not tell its {', '.join(lost)}: {advice}")
    takes_any = any(one.kind is one.VAR_KEYWORD for one in asked)
    return {name: value for name, value in optimizer.defaults.items() if takes_any or name in named}


def _made(
    kind: Callable[..., torch.optim.Optimizer], arguments: dict[str, Any],
    groups: tuple[tuple[tuple[int, ...], dict[str, Any]], ...], parameters: list[torch.nn.Parameter],
) -> torch.optim.Optimizer:  # fmt: skip
    return kind([{**options, "params": [parameters[place] for place in places]} for places, options in groups], **arguments)
