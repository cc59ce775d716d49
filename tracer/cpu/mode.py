"""Real execution on the CPU, with the requests that CUDA's operators would make on a card.

A dispatch mode sees every ATen operator of the run, forward and backward, with its real tensors. `tracer/rules` lists what
CUDA's operator returns and what else it allocates; lifetimes are observed here: a block lives as long as the CPU's storage.

A CPU run differs from a GPU run as follows:
  - parameters never move: `hold_model` enters them in the order of `model.to(device)`;
  - results may have another memory layout: they get CUDA's, because later copies depend on it;
  - CUDA writes some results into their first argument: so does this mode;
  - an optimizer's scalars (step counters) stay on the host: they are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from vramcast.hardware.device import Device
from vramcast.tracer.hooks.tensors import tensors_in
from vramcast.tracer.hooks.torch_api import TorchDispatchMode, tree_flatten, tree_map, tree_unflatten
from vramcast.tracer.recording.profile import ProfilePlace
from vramcast.tracer.rules.convolution_workspaces import ConvolutionWorkspaces
from vramcast.tracer.rules.ruled_card import RuledCard
from vramcast.tracer.rules.shapes import META

_aten = torch.ops.aten
_RECURRENT = frozenset((_aten.mkldnn_rnn_layer, _aten.mkldnn_rnn_layer_backward))


class CpuMode(TorchDispatchMode):
    """A dispatch mode in which the CPU's tensors stand for the card's.

    Known limitations: an optimizer's scalars are assumed to be host tensors, all others are not; a tensor that a script
    would make on the host and move counts from its creation; recurrent layers are the CPU's.

    Attributes:
        card: Records the requests.
    """

    def __init__(self, device: Device, convolution_workspaces: ConvolutionWorkspaces) -> None:
        super().__init__()
        self.card = RuledCard(device, convolution_workspaces, self._on_card)

    def hold_model(self, model: torch.nn.Module) -> None:
        """Enter the parameters and buffers of `model`, in the order in which `model.to(device)` copies them."""
        for tensor in _in_order_of_moving(model, set()):
            self._hold(tensor, data=False)

    def hold_input(self, tensor: torch.Tensor) -> torch.Tensor:
        """Enter `tensor` as a step's input, and return it."""
        self._hold(tensor, data=True)
        return tensor

    def _hold(self, tensor: torch.Tensor, *, data: bool) -> None:
        history, storage = self.card.history, tensor.untyped_storage()
        if not history.knows(storage):
            history.begin(storage, tensor.nbytes, ProfilePlace("aten::to", data=data))

    def _on_card(self, value: Any) -> bool:
        return _is_plain(value) and self.card.history.knows(value.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors_in(args, kwargs)
        if given and not any(self._on_card(t) for t in given):
            return func(*args, **kwargs)
        self.card.recorder.note()
        in_place = self.card.takes_first(func, args)
        result = func(*args, **kwargs)
        if in_place:
            result = args[0].copy_(result).detach()
        results, structure = tree_flatten(result)
        fresh = [t for t in results if _is_plain(t) and not self._on_card(t)]
        if (not fresh and not self.card.has_rule(func)) or (not given and self._stays_on_host(fresh)):
            return result
        there = self._there(func, args, kwargs, results) if fresh else [_on_meta(here) for here in results]
        kept: dict[int, torch.UntypedStorage] = {}
        for i, (here, like) in enumerate(zip(results, there, strict=True)):
            if _is_plain(like):
                results[i] = here if self._on_card(here) else _laid_out(here, like)
                kept[like.untyped_storage()._cdata] = results[i].untyped_storage()
        results, there = (tree_unflatten(leaves, structure) for leaves in (results, there))
        shown = there if isinstance(there, (tuple, list)) else (there,)
        self.card.play(func, args, kwargs, shown, lambda tensor: kept[tensor.untyped_storage()._cdata])
        if func._overloadpacket in _RECURRENT:
            self.card.unmodelled["cudnn recurrent layers: as the CPU's"] += 1
        return results

    def _stays_on_host(self, made: list[torch.Tensor]) -> bool:
        """Return whether a factory's tensor is an optimizer's step counter."""
        return self.card.recorder.in_step and made[0].numel() == 1

    def _there(self, func: Any, args: Any, kwargs: Any, results: list[Any]) -> list[Any]:
        """Return the flat results as CUDA would create them, or as the CPU does if that is unknown."""
        try:
            there, _ = tree_flatten(self.card.shapes.run(func, *tree_map(_on_meta, (args, kwargs))))
        except (NotImplementedError, RuntimeError):  # no meta kernel, or a data-dependent shape
            there = []
        if len(there) != len(results):
            there = [_on_meta(here) for here in results]
        return [like if _is_plain(here) else None for here, like in zip(results, there, strict=True)]


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _on_meta(value: Any) -> Any:
    """Return a meta tensor with the layout of this one; for a device, return the meta device."""
    if _is_plain(value):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
    return META if isinstance(value, torch.device) else value


def _laid_out(here: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a new tensor with CUDA's memory layout."""
    if here.stride() == like.stride() or (here.shape, here.dtype) != (like.shape, like.dtype):
        return here
    return torch.empty_strided(like.shape, like.stride(), dtype=here.dtype).copy_(here)


def _in_order_of_moving(module: torch.nn.Module, seen: set[int]) -> Iterable[torch.Tensor]:
    """Yield parameters and buffers once each: those of children first, as in `Module._apply`."""
    for child in module.children():
        yield from _in_order_of_moving(child, seen)
    for tensor in [*module._parameters.values(), *module._buffers.values()]:
        if tensor is not None and id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
