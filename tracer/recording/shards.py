"""One rank's part of each module's parameters: its shards, or the whole.

Recognized are `DTensor`s (FSDP2, tensor parallelism), FSDP1's flat parameters and those of DeepSpeed's ZeRO-3; others are
whole.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from vramcast.tracer.hooks import torch_api
from vramcast.tracer.recording import owners


class _Part(NamedTuple):
    """The part of a parameter: bytes in all and here; whether it is a shard, and whether all ranks' shards are equal."""

    full: int
    here: int
    is_sharded: bool
    is_even: bool


class Holdings:
    """The parameters held by this rank, added up as its models are first seen."""

    def __init__(self) -> None:
        self._is_even = True
        self._modules: dict[str, list[int]] = {}

    def note(self, model: torch.nn.Module) -> None:
        """Add a model's parameters, each once; do nothing if there is only one rank."""
        distributed: Any = torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            return
        seen: set[int] = set()
        for path, module in model.named_modules():
            for parameter in _own(module):
                if id(parameter) in seen or torch.nn.parameter.is_lazy(parameter):
                    continue
                seen.add(id(parameter))
                part = _part(parameter)
                self._is_even &= part.is_even
                row = self._modules.setdefault(_block(path) or type(model).__name__, [0, 0, 0])
                row[0] += part.full
                row[1 if part.is_sharded else 2] += part.here

    def to_header(self) -> dict[str, Any]:
        """Return the facts in the form that `tracer/format/rank_facts.py` reads."""
        return {"modules": [[path, *sizes] for path, sizes in self._modules.items() if sizes[0]], "is_even": self._is_even}


def _block(path: str) -> str:
    """Return a module's path up to its first number; DDP's and FSDP1's own names are left out."""
    parts = [part for part in path.split(".") if part not in ("module", torch_api.FSDP1_WRAPPED)]
    return ".".join(parts[: next((i + 1 for i, part in enumerate(parts) if part.isdigit()), len(parts))])


def _own(module: torch.nn.Module) -> Iterator[Any]:
    """Yield a module's own parameters; for FSDP1, the flat one and not those inside it."""
    flat = getattr(module, torch_api.FSDP1_FLAT, None)
    if flat is not None:
        yield flat
    for parameter in module.parameters(recurse=False):
        if not hasattr(parameter, torch_api.FSDP1_FLATTENED):
            yield parameter


def _part(parameter: Any) -> _Part:
    if hasattr(parameter, "ds_numel"):  # spec: DeepSpeed's ZeRO-3; it pads all partitions to one size
        here = parameter.ds_tensor.numel() * parameter.ds_tensor.element_size()
        return _Part(parameter.ds_numel * parameter.element_size(), here, True, True)
    if hasattr(parameter, torch_api.FSDP1_FULL_SIZE):  # FSDP1 pads all shards to one size
        full = getattr(parameter, torch_api.FSDP1_FULL_SIZE).numel() * parameter.element_size()
        here = getattr(parameter, torch_api.FSDP1_SHARD, parameter).numel() * parameter.element_size()
        return _Part(full, here, here < full, True)
    tensors = sys.modules.get("torch.distributed.tensor")
    full = parameter.numel() * parameter.element_size()
    if tensors is None or not isinstance(parameter, tensors.DTensor):
        return _Part(full, full, False, True)
    ways = [
        (placement.dim, parameter.device_mesh.size(at))
        for at, placement in enumerate(parameter.placements)
        if isinstance(placement, tensors.Shard)
    ]
    here = sum(tensor.numel() * tensor.element_size() for tensor in owners.plain([parameter]))
    is_even = all(parameter.shape[dim] % math.prod(n for other, n in ways if other == dim) == 0 for dim, _ in ways)
    return _Part(full, here, bool(ways), is_even)
