"""What the tensors of a job hold, as far as it is known, drawn, or can be worked out on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.tracer.program.meta_model import BIG_BYTES
from vramcast.tracer.values.host_shadows import Shadows, is_small, version
from vramcast.tracer.values.recipes import Budget, Origin, OverBudget, Recipe, drawn_leaf, work_out


class TensorValues:
    """Host copies of what tensors of the card hold, and recipes for what is not there at once.

    Args:
        on_card: Whether a tensor lies on the card; None: torch's own answer.
        devices: Types of device that stand for the card.
    """

    def __init__(self, on_card: Callable[[torch.Tensor], bool] | None, devices: tuple[str, ...]) -> None:
        super().__init__()
        self.on_card = on_card or (lambda tensor: tensor.is_cuda)
        self._devices = devices
        self._shadows = Shadows()
        self._budget = Budget()

    def same(self, result: torch.Tensor, source: torch.Tensor) -> None:
        """Note that a tensor of the card now holds what another one holds, or held before it was written as it was."""
        if result is source:
            self._shadows.changed(result)
        elif (found := self.value(source)) is not None and result.numel() == source.numel():
            known, origin = found  # a collective reads its tensors as they lie, whatever their shapes
            self._shadows.keep(result, known.reshape(result.shape), origin)

    def holds(self, result: torch.Tensor, value: torch.Tensor, origin: Origin) -> None:
        """Note that a tensor of the card now holds what a host tensor of as many elements holds."""
        if result.numel() == value.numel():
            self._shadows.keep(result, value.reshape(result.shape).to(result.dtype), origin)

    def forget(self, tensor: torch.Tensor) -> None:
        """Note that a tensor of the card now holds what nobody knows."""
        self._shadows.forget(tensor)

    def is_card(self, value: Any) -> bool:
        """Return whether an argument names the card."""
        if isinstance(value, str):
            return value.partition(":")[0] in self._devices
        return isinstance(value, torch.device) and value.type in self._devices

    def value(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Origin] | None:
        """Return a host tensor with what `tensor` holds, and where that comes from; None when it is not there at once."""
        if not is_small(tensor):
            return None
        if not self.on_card(tensor):
            return None if _is_hollow(tensor) else (tensor.detach(), Origin.KNOWN)
        shadow = self._shadows.find(tensor)
        return (self._shadows.view(shadow, tensor), shadow.origin) if shadow is not None else None

    def guess(self, name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, Origin] | None:
        """Return values for a small unknown tensor which meets something known, or is decided upon; None where it stays so."""
        if not is_small(tensor) or not self.on_card(tensor):
            return None
        is_made = self._shadows.recipe(tensor) is not None
        return self.work_out(tensor, name) if tensor.is_floating_point() or is_made else None

    def recipe(self, tensor: torch.Tensor) -> Recipe:
        """Return how to work out what `tensor` holds."""
        if tensor.layout != torch.strided:
            return drawn_leaf(tensor.shape, tensor.dtype)
        if self.on_card(tensor):
            if (shadow := self._shadows.find(tensor)) is not None:
                later = self._shadows.later(shadow, tensor)
                return Recipe(tensor.shape, tensor.dtype, shadow.origin, known=later)
            return self._shadows.recipe(tensor) or drawn_leaf(tensor.shape, tensor.dtype)
        if _is_hollow(tensor):
            return drawn_leaf(tensor.shape, tensor.dtype)
        noted, host = version(tensor), tensor.detach()
        known = lambda: host if version(host) == noted else None  # noqa: E731
        return Recipe(tensor.shape, tensor.dtype, Origin.KNOWN, known=known)

    def work_out(self, tensor: torch.Tensor, name: str) -> tuple[torch.Tensor, Origin] | None:
        """Return what `tensor`, an argument of `name`, holds, and where that comes from; None where it is too much work."""
        recipe = self.recipe(tensor)
        if recipe.is_drawn and name.startswith("unique") and not tensor.is_floating_point():
            value = torch.arange(tensor.numel(), device="cpu").view(tensor.shape).to(tensor.dtype)
        else:
            try:
                value = work_out(recipe, self._budget)
            except OverBudget:
                return None
        if self.on_card(tensor):
            self._shadows.keep(tensor, value, recipe.origin)
        return value, recipe.origin


def _is_hollow(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the host is all storage and no meaning."""
    return tensor.is_floating_point() and tensor.nbytes >= BIG_BYTES
