"""Facts of a model, as a hash and as numbers: its structure, not its weights."""

from __future__ import annotations

from collections import Counter

import torch

from vramcast.core.files import digest


def model_sha256(model: torch.nn.Module) -> str:
    """Return a hash of the module tree and of every parameter's and buffer's name, type and shape.

    Two models with the same hash make the same requests on the same batch, provided that their code is the same.
    """
    lines = [f"{name} {type(module).__name__}({module.extra_repr()})" for name, module in model.named_modules()]
    for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        lines += [f"{kind} {name} {t.dtype} {tuple(t.shape)} {t.requires_grad}" for name, t in named]
    return digest(*lines, digits=64)


def features(model: torch.nn.Module) -> dict[str, float]:
    """Return counts: parameters, their bytes, buffers' bytes, modules, and `layers.CLASS` for every kind of leaf module."""
    parameters = list(model.parameters())
    layers = Counter(type(module).__name__ for module in model.modules() if not list(module.children()))
    return {
        "parameters": float(sum(p.numel() for p in parameters)),
        "trainable_parameters": float(sum(p.numel() for p in parameters if p.requires_grad)),
        "parameter_bytes": float(sum(p.nbytes for p in parameters)),
        "parameter_tensors": float(len(parameters)),
        "buffer_bytes": float(sum(b.nbytes for b in model.buffers())),
        "modules": float(sum(1 for _ in model.modules())),
        **{f"layers.{name}": float(count) for name, count in sorted(layers.items())},
    }
