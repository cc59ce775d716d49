"""Lets ATen on the CPU take the routes which it takes on CUDA, where the two make different tensors.

    with CudaRoutes(): run the job

Numbered cases:
  1. dropout: CUDA keeps a mask of one byte an element (`native_dropout`), the CPU a floating one;
  2. attention: CUDA's fused kernels take dropout and keep the log-sum-exp, the CPU falls back to the full scores; and the
     result is laid out otherwise;
  3. optimizers: CUDA's default is the foreach implementation with its sets of temporaries, the CPU's the loop;
  4. linear without a fused bias: under a dispatch mode the bias is added out of place; it is not on CUDA;
  5. autocast: CUDA computes norms, softmax, losses and powers in float32, the CPU's list is shorter.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend
from torch.optim import optimizer as optimizers
from torch.utils._pytree import tree_map

_aten = torch.ops.aten
# Where torch.optim looks up which devices have foreach kernels; torch 2.6 to 2.13.
_FOREACH_DEVICES = "_get_foreach_kernels_supported_devices"
# spec: "CUDA Ops that can autocast to float32" in torch.amp's documentation, as ATen's names; those which the CPU's list lacks.
_FLOAT32_OPS = (
    "acos", "asin", "cosh", "cosine_embedding_loss", "cdist", "cosine_similarity", "dist", "erfinv", "exp", "expm1",
    "group_norm", "hinge_embedding_loss", "kl_div", "l1_loss", "layer_norm", "log", "log10", "log1p", "log2",
    "margin_ranking_loss", "mse_loss", "nll_loss", "nll_loss2d", "poisson_nll_loss", "pow.Tensor_Scalar",
    "pow.Tensor_Tensor", "pow.Scalar", "reciprocal", "rsqrt", "sinh", "smooth_l1_loss", "soft_margin_loss", "softplus",
    "tan", "triplet_margin_loss", "binary_cross_entropy_with_logits", "multilabel_margin_loss", "renorm",
)  # fmt: skip
# spec: the same list; these take the type of their result as an argument instead of a converted input.
_FLOAT32_RESULTS = ("cumprod", "cumsum", "log_softmax.int", "softmax.int", "sum", "sum.dim_IntList", "prod")


_ATTENTIONS: list[int] = []  # one entry while an attention runs


def in_attention() -> bool:
    """Return whether an attention runs, which adds its mask to the scores in place except under a dispatch mode."""
    return bool(_ATTENTIONS)


class CudaRoutes:
    """While active, the routes above are CUDA's. For a process which runs one job."""

    def __init__(self) -> None:
        self._library: Any = None

    def __enter__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel takes another's place is what is wanted
            for name, route in (("dropout", _dropout), ("linear", _linear), ("scaled_dot_product_attention", _attention)):
                self._library.impl(name, route, "AutogradCPU")
            for name in _FLOAT32_OPS:
                self._library.impl(name, _in_float32(_overload(name)), "AutocastCPU")
            for name in _FLOAT32_RESULTS:
                self._library.impl(name, _to_float32(_overload(name)), "AutocastCPU")
        self._devices = getattr(optimizers, _FOREACH_DEVICES)
        setattr(optimizers, _FOREACH_DEVICES, lambda: ["cpu", *self._devices()])

    def __exit__(self, *error: Any) -> None:
        self._library._destroy()
        setattr(optimizers, _FOREACH_DEVICES, self._devices)


def _composite(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run what ATen itself runs for `func` on every device."""
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p in (0.0, 1.0) or not tensor.numel():
        return _composite(_aten.dropout.default, tensor, p, train)
    return torch.native_dropout(tensor, p, train)[0]


def _linear(tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if bias is None or tensor.dim() == 2 or tensor.is_contiguous():
        return _composite(_aten.linear.default, tensor, weight, bias)
    return _composite(_aten.linear.default, tensor, weight, None).add_(bias)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    named: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    # A fused kernel never stores what it dropped, so without dropout it takes the same memory.
    fused = torch._fused_sdp_choice(query, key, value, attn_mask, 0.0, is_causal, **named)
    kept_p = dropout_p if fused == SDPBackend.MATH.value else 0.0
    _ATTENTIONS.append(1)
    try:
        default = _aten.scaled_dot_product_attention.default
        return _composite(default, query, key, value, attn_mask, kept_p, is_causal, **named)
    finally:
        _ATTENTIONS.pop()


def laid_out(func: Any, result: Any) -> Any:
    """Return an operator's result with the strides of CUDA's: later copies depend on them.

    The memory-efficient kernel (float32) writes batch x rows x heads x columns, the CPU's as the query lies.
    """
    if func is not _aten._scaled_dot_product_flash_attention_for_cpu.default or result[0].dtype != torch.float32:
        return result
    output = result[0].transpose(1, 2)
    if output.is_contiguous():
        return result
    return (output.contiguous().transpose(1, 2), *result[1:])


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


def _without_autocast(func: Any, args: Any, kwargs: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        return func(*args, **kwargs)


def _is_low(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)


def _in_float32(func: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(lambda value: value.float() if _is_low(value) else value, (args, kwargs))
        return _without_autocast(func, args, kwargs)

    return run


def _to_float32(func: Any) -> Callable[..., Any]:
    place = next(i for i, argument in enumerate(func._schema.arguments) if argument.name == "dtype")
    by_name = func._schema.arguments[place].kwarg_only

    def run(*args: Any, **kwargs: Any) -> Any:
        if _is_low(args[0]) and kwargs.get("dtype") is None and len(args) <= place:
            args, kwargs = (args, {**kwargs, "dtype": torch.float32}) if by_name else ((*args, torch.float32), kwargs)
        return _without_autocast(func, args, kwargs)

    return run
