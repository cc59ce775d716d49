"""CUDA's autocast for tensors that C++ does not recognize as CUDA's: the same casts, the same cache of weights.

PyTorch's dispatcher lists the operators to cast: those with their own kernel under CUDA's autocast key. The kind of cast is
listed here. spec: the lists of aten/src/ATen/autocast_mode.h, torch 2.11; operators on none of them run in float32.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

from vramcast.hardware.stack import Stack
from vramcast.tracer.hooks.tensors import tensors_in
from vramcast.tracer.hooks.torch_api import DispatchKey, DispatchKeySet, ExcludeDispatchKeyGuard, all_operator_names, has_kernel

_LOWER = frozenset({
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm",
    "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell",
    "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
})  # fmt: skip
_WITH_DTYPE = frozenset(
    ["prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "sum"]
)
_PROMOTED = frozenset(
    ["addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot", "scatter_add"]
)
_LEFT = frozenset({"binary_cross_entropy", "norm", "_cudnn_rnn"})
_DECIDES = "AutocastCUDA"


class Autocast:
    """CUDA's autocast for tensors of `device_type`, for the lifetime of this object.

    Args:
        stack: The stack of the torch to follow.
        device_type: The type of the tensors' device.
    """

    def __init__(self, stack: Stack, device_type: str = "cuda") -> None:
        self._device_type = device_type
        self._keeps_in_inference_mode = stack.keeps_casts_in_inference_mode
        self._key = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}[device_type]
        self._library = torch.library.Library("aten", "IMPL")
        self._cache: dict[int, tuple[Any, torch.Tensor]] = {}
        self._keys = DispatchKeySet(getattr(DispatchKey, self._key))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # replacing a kernel is intended here
            for qualified in all_operator_names():
                is_cast = functools.partial(has_kernel, qualified)
                if qualified.startswith("aten::") and (is_cast(_DECIDES) or is_cast(self._key)):
                    name, _, overload = qualified.removeprefix("aten::").partition(".")
                    self._register(name, overload, is_cast(_DECIDES))
        clear = torch.clear_autocast_cache

        def clear_all() -> None:
            self._cache.clear()
            clear()

        torch.clear_autocast_cache = clear_all

    def _register(self, name: str, overload: str, casts: bool) -> None:
        if name in _LEFT:
            return
        op = getattr(getattr(torch.ops.aten, name), overload or "default")
        kernel = torch.library.fallthrough_kernel
        if casts and name in _WITH_DTYPE and any(a.name == "dtype" for a in op._schema.arguments):
            kernel = self._with_dtype(op)
        elif casts:
            kernel = self._cast(op, self._lower if name in _LOWER else self._widest if name in _PROMOTED else _float32)
        self._library.impl(op, kernel, self._key)

    def _cast(self, op: Any, how: Callable[[list[torch.Tensor]], Callable[[torch.Tensor], torch.Tensor]]) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with ExcludeDispatchKeyGuard(self._keys):
                cast = how([t for t in tensors_in(args, kwargs) if self._eligible(t)])
                # measured: the compiler of PyTorch's wheels evaluates a call's arguments from the last to the first.
                named = {k: self._mapped(v, cast) for k, v in reversed(kwargs.items())}
                placed = [self._mapped(a, cast) for a in reversed(args)]
                return op(*reversed(placed), **named)

        return kernel

    def _with_dtype(self, op: Any) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with ExcludeDispatchKeyGuard(self._keys):
                low = self._eligible(args[0]) and args[0].dtype in (torch.float16, torch.bfloat16)
                names = [a.name for a in op._schema.arguments]
                given = kwargs.get("dtype") if "dtype" in kwargs else dict(zip(names, args, strict=False)).get("dtype")
                if low and given is None:
                    at = names.index("dtype")
                    args, kwargs = args[:at], {**kwargs, "dtype": torch.float32}
                return op(*args, **kwargs)

        return kernel

    def _lower(self, _: list[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        dtype = torch.get_autocast_dtype(self._device_type)

        def cast(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dtype == dtype:
                return tensor
            is_weight = tensor.dtype == torch.float32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
            is_kept = self._keeps_in_inference_mode or not torch.is_inference_mode_enabled()
            if not is_weight or not is_kept or not torch.is_autocast_cache_enabled():
                return tensor.to(dtype)
            known = self._cache.get(id(tensor))
            if known is None:
                # The weak reference only proves that the id still belongs to this tensor.
                known = self._cache[id(tensor)] = (weakref.ref(tensor.untyped_storage()), tensor.to(dtype))
            return known[1]

        return cast

    def _widest(self, tensors: list[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        low = torch.get_autocast_dtype(self._device_type)
        dtype = torch.float32 if any(t.dtype == torch.float32 for t in tensors) else low
        return lambda tensor: tensor.to(dtype)

    def _eligible(self, value: Any) -> bool:
        is_number = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return is_number and value.device.type == self._device_type

    def _mapped(self, value: Any, cast: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._mapped(v, cast) for v in value)
        return cast(value) if self._eligible(value) else value


def _float32(_: list[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(torch.float32)
