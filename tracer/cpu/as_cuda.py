"""Routing of ATen on the CPU as on CUDA, where the two create different tensors.

    with CudaRoutes(card): run the job

Numbered cases:
  1. operators composed differently on CUDA, and autocast's lists: see `tracer/rules`;
  2. operators that only CUDA has (attention, cuDNN's batch normalization, a fused rms_norm): computed here by the CPU's;
  3. optimizers: CUDA's default is the foreach implementation with its sets of temporaries, the CPU's is the loop.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from vramcast.hardware.stack import Stack
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.rules import composites
from vramcast.tracer.rules.autocast import Autocast
from vramcast.tracer.rules.ruled_card import RuledCard

_aten = torch.ops.aten


class CudaRoutes:
    """A context in which the routes above are CUDA's. For a process that runs one job."""

    def __init__(self, card: RuledCard, stack: Stack) -> None:
        self._card, self._stack = card, stack
        self._foreach: list[tuple[Any, str, Any]] = []  # replaced: torch.optim's lists of devices with foreach kernels

    def __enter__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # replacing a kernel is intended
            composites.register(self._library, self._card, "AutogradCPU", self._stack)
            for name, kernel in _KERNELS.items():
                self._library.impl(name, kernel, "CPU")
        self._autocast = Autocast(self._stack, "cpu")
        for owner, name in torch_api.places("foreach_devices_of_optimizers"):
            known = getattr(owner, name)
            self._foreach.append((owner, name, known))
            setattr(owner, name, lambda known=known: ["cpu", *known()])

    def __exit__(self, *error: Any) -> None:
        self._library._destroy()
        for place in self._foreach:
            setattr(*place)


# ------------------------------------------------------------------------------------------------ attention
def _attention(name: str) -> Callable[..., Any]:
    """Return the kernel of a fused attention; dropped elements are not stored, so it takes as much memory as without
    dropout.
    """
    schema = getattr(_aten, name).default._schema

    def forward(*args: Any, **kwargs: Any) -> Any:
        named = _named(schema, args, kwargs)
        query, key, value = _evenly(named)
        output, logsumexp = _aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, **_options(named))
        lengths = {"max_q": query.shape[2], "max_k": key.shape[2]}
        others = [lengths.get(r.name, torch.empty(0, dtype=torch.int64)) for r in schema.returns[2:]]
        return (output[..., : named["value"].shape[-1]], logsumexp, *others)

    return forward


def _attention_backward(name: str) -> Callable[..., Any]:
    """Return the kernel of its gradient; the gradient of a mask is not computed but filled with zeros."""
    schema = getattr(_aten, name).default._schema

    def backward(*args: Any, **kwargs: Any) -> Any:
        named = _named(schema, args, kwargs)
        query, key, value = _evenly(named)
        gradient, output = (_widened(t, query.shape[-1]) for t in (args[0], named["out"]))
        gradients = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, output, named["logsumexp"], 0.0, **_options(named)
        )
        made = []
        for made_gradient, given in zip(gradients, (named["query"], named["key"], named["value"]), strict=True):
            heads = made_gradient[..., : given.shape[-1]].unflatten(1, (given.shape[1], -1))
            made.append(heads.sum(2) if heads.shape[2] > 1 else heads.squeeze(2))
        bias = named.get("attn_bias")
        return (*made, None if bias is None else torch.zeros_like(bias))[: len(schema.returns)]

    return backward


def _named(schema: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of an operator by name, including defaults."""
    defaults = {a.name: a.default_value for a in schema.arguments}
    return {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}


def _options(named: dict[str, Any]) -> dict[str, Any]:
    scale = named["scale"] if named["scale"] is not None else named["query"].shape[-1] ** -0.5
    return {"is_causal": named["is_causal"], "attn_mask": named.get("attn_bias"), "scale": scale}


def _evenly(named: dict[str, Any]) -> list[torch.Tensor]:
    """Return query, key and value with equal numbers of heads and columns, as the CPU's kernel requires."""
    given = [named[name] for name in ("query", "key", "value")]
    n_heads, width = given[0].shape[1], max(t.shape[-1] for t in given)
    return [_widened(t if t.shape[1] == n_heads else t.repeat_interleave(n_heads // t.shape[1], 1), width) for t in given]


def _widened(tensor: torch.Tensor, width: int) -> torch.Tensor:
    missing = width - tensor.shape[-1]
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


# ------------------------------------------------------------------------------------------------ normalization
def _batch_norm(*args: Any) -> Any:
    return (*torch.native_batch_norm(*args), torch.empty(0, dtype=torch.uint8))


def _batch_norm_backward(
    tensor: torch.Tensor, gradient: torch.Tensor, weight: Any, mean: Any, variance: Any, saved_mean: Any, saved_scale: Any,
    eps: float, reserve: Any,
) -> Any:  # fmt: skip
    return _aten.native_batch_norm_backward(
        gradient, tensor, weight, mean, variance, saved_mean, saved_scale, True, eps, [True, True, True]
    )


def _rms_norm(tensor: torch.Tensor, shape: list[int], weight: Any, eps: float | None) -> Any:
    dims = tuple(range(-len(shape), 0))
    wide = tensor.float()
    scale = torch.rsqrt(wide.square().mean(dims, keepdim=True) + (torch.finfo(tensor.dtype).eps if eps is None else eps))
    return (wide * scale * (1 if weight is None else weight)).to(tensor.dtype), scale


def _rms_norm_backward(
    gradient: torch.Tensor, tensor: torch.Tensor, shape: list[int], scale: torch.Tensor, weight: Any, wanted: Any
) -> Any:
    dims = tuple(range(-len(shape), 0))
    normal = tensor.float() * scale
    weighted = gradient.float() * (1 if weight is None else weight)
    of_input = scale * (weighted - normal * (weighted * normal).mean(dims, keepdim=True))
    of_weight = None if weight is None else (gradient.float() * normal).sum_to_size(weight.shape).to(weight.dtype)
    return of_input.to(tensor.dtype), of_weight


_ATTENTIONS = [f"_scaled_dot_product_{kernel}_attention" for kernel in ("flash", "efficient", "cudnn")]
_KERNELS: dict[str, Callable[..., Any]] = {
    **{name: _attention(name) for name in _ATTENTIONS},
    **{f"{name}_backward": _attention_backward(f"{name}_backward") for name in _ATTENTIONS},
    "cudnn_batch_norm": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward,
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
}
