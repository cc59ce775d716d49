"""Operators above autograd that take another path on CUDA, where PyTorch's C++ checks `is_cuda()`, which is false here.

Registered for an autograd key in the tracing process, they replace the decomposition of the same name.

spec: the conditions are those of torch 2.11, `_batch_norm_impl_index`, `dropout`, `rms_norm` and
`scaled_dot_product_attention` in ATen/native. The choice of the attention kernel is measured on the null GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.hardware.stack import Stack
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.installed_torch import is_before
from vramcast.tracer.hooks.torch_api import DispatchKey
from vramcast.tracer.rules.ruled_card import RuledCard

aten = torch.ops.aten

_MIN_BATCH_NORM_EPS = 0.0  # spec: cuDNN >= 7.5, CUDNN_BN_MIN_EPSILON
_MAX_BATCH = {True: 880_801, False: 65_535}  # spec: training, evaluation
_FLASH_DIMENSION = 256  # spec: the largest head dimension of the flash kernels
_LOW = (torch.float16, torch.bfloat16)
_SWITCHES = {
    "cudnn": "cudnn_sdp_enabled", "flash": "flash_sdp_enabled", "efficient": "mem_efficient_sdp_enabled",
    "math": "math_sdp_enabled",
}  # fmt: skip
_CUDNN_FIRST = ((9, 0), (10, 0))  # spec: `check_prefer_cudnn_attention`
_CUDNN_DIMENSION = 128  # spec: the largest head dimension of cuDNN's attention
_DROPS_SIXTEENTHS = (2, 14)  # spec: `check_cudnn_dropout` of torch 2.14; measured: 2.14.1 and 2.15.0, not 2.11.0


def register(library: torch.library.Library, card: RuledCard, key: str, stack: Stack) -> None:
    """Replace the decompositions for tensors with autograd's dispatch key `key`, for the lifetime of the library."""
    attention = Attention(card, stack)
    for name, function in (
        ("dropout", _dropout),
        ("batch_norm", _batch_norm),
        ("rms_norm", _rms_norm),
        ("linear", _linear),
        ("one_hot", _one_hot),
        ("allclose", _allclose),
        ("ctc_loss.Tensor", _ctc_loss),
        ("scaled_dot_product_attention", attention),
    ):
        if name != "rms_norm" or torch_api.has("fused_rms_norm"):
            library.impl(name, function, key)


def _allclose(
    input: torch.Tensor, other: torch.Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:  # fmt: skip
    return bool(aten._local_scalar_dense.default(aten.all.default(aten.isclose.default(input, other, rtol, atol, equal_nan))))


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if p == 0 or not train or input.numel() == 0:
        return input
    if p == 1:
        return input * aten.zeros.default([], dtype=input.dtype, device=input.device)
    return torch.native_dropout(input, p, train)[0]


def _batch_norm(
    input: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:  # fmt: skip
    with_cudnn = (
        cudnn_enabled
        and weight is not None
        and bias is not None
        and input.dim() > 2
        and input.dtype != torch.bfloat16
        and weight.dtype != torch.bfloat16
        and (input.dtype != torch.float16 or weight.dtype == torch.float32)
        and (mean is not None or (variance is None and training))
        and input.shape[0] <= _MAX_BATCH[training]
        and eps >= _MIN_BATCH_NORM_EPS
    )
    if not with_cudnn:
        return torch.native_batch_norm(input, weight, bias, mean, variance, training, momentum, eps)[0]
    input = input.contiguous(memory_format=_format(input))
    return torch.cudnn_batch_norm(input, weight, bias, mean, variance, training, momentum, eps)[0]


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
    if bias is None or input.dim() < 3 or input.is_contiguous():
        return aten.linear.default._op_dk(DispatchKey.CompositeImplicitAutograd, input, weight, bias)
    return torch.matmul(input, weight.t()).add_(bias)


def _ctc_loss(
    scores: torch.Tensor, targets: torch.Tensor, score_lengths: torch.Tensor, target_lengths: torch.Tensor, blank: int = 0,
    reduction: int = 1, zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return the loss; CUDA reads the lengths on the host."""
    lengths = [t.to("cpu", torch.int64).tolist() for t in (score_lengths, target_lengths)]
    return aten.ctc_loss.IntList(scores, targets, *lengths, blank, reduction, zero_infinity)


def _one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Return one-hot rows; CUDA does not check that the values are below the number of classes."""
    if num_classes == -1:
        num_classes = int(input.max().item()) + 1
    result = aten.zeros.default([*input.shape, num_classes], dtype=input.dtype, device=input.device)
    return result.scatter_(-1, input.unsqueeze(-1), 1)


def _format(tensor: torch.Tensor) -> torch.memory_format:
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous():
        return torch.channels_last
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d) and not tensor.is_contiguous():
        return torch.channels_last_3d
    return torch.contiguous_format


def _rms_norm(input: torch.Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> torch.Tensor:
    return torch_api.fused_rms_norm(input, normalized_shape, weight, eps)[0]


class Attention:
    """`scaled_dot_product_attention` on a card."""

    def __init__(self, card: RuledCard, stack: Stack) -> None:
        self._card = card
        self._capability = card.device.compute_capability
        self._fuses_unbatched = stack.fuses_unbatched_attention
        self._prefers_cudnn = stack.prefers_cudnn_attention and self._capability in _CUDNN_FIRST

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """Return the attention's output, like the operator of this name."""
        if self._fuses_unbatched and query.dim() == key.dim() == value.dim() == 3:
            wide = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask.unsqueeze(0)
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
            return self(query, key, value, wide, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa).squeeze(0)
        kernel = self.kernel(query, key, value, attn_mask, dropout_p)
        if kernel == "none":
            raise RuntimeError("No available kernel. Aborting execution.")
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = _additive(attn_mask, query.dtype)
        keeps = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if kernel == "cudnn":
            return aten._scaled_dot_product_cudnn_attention(
                query, key, value, attn_mask, keeps, dropout_p, is_causal, False, scale=scale
            )[0]
        if kernel == "flash":
            width = query.shape[-1]
            scale = scale if scale is not None else width**-0.5
            query, key, value = (_padded(t, 8) for t in (query, key, value))
            out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
            return out[..., :width] if width % 8 else out
        if kernel == "efficient":
            if attn_mask is not None:
                attn_mask = _aligned(attn_mask, query, key)
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale
            )[0]
        self._card.masking = True
        try:
            return aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]
        finally:
            self._card.masking = False

    def kernel(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, dropout_p: float
    ) -> str:  # fmt: skip
        """Return cudnn, flash, efficient, math, or none if the job switched off all suitable kernels."""
        fits = {"flash": self._flash, "efficient": self._efficient, "math": lambda *_: True}
        fits["cudnn"] = lambda *given: _cudnn_drops(dropout_p) and self._cudnn(*given)
        order = ("cudnn", "flash", "efficient", "math") if self._prefers_cudnn else ("flash", "efficient", "math", "cudnn")
        of_four = query.dim() == 4 and 0 not in query.shape and 0 not in key.shape
        fused = of_four and all(t.stride(-1) == 1 for t in (query, key, value))
        return next(
            (
                name
                for name in order
                if getattr(torch.backends.cuda, _SWITCHES[name])()
                and (name == "math" or (fused and fits[name](query, key, value, mask)))
            ),
            "none",
        )

    def _cudnn(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any) -> bool:
        width = query.shape[-1]
        aligned = width % 8 == 0 and value.shape[-1] % 8 == 0
        return query.dtype in _LOW and self._capability >= (8, 0) and aligned and width <= _CUDNN_DIMENSION

    def _flash(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any) -> bool:
        width = query.shape[-1]
        widths_equal = width == key.shape[-1] == value.shape[-1]
        return (
            query.dtype in _LOW and self._capability >= (8, 0) and mask is None and widths_equal and width <= _FLASH_DIMENSION
        )

    def _efficient(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any) -> bool:
        low = query.dtype in _LOW
        same_heads = query.shape[:2] == key.shape[:2] == value.shape[:2]
        aligned = 4 if not low else 8 if self._capability >= (8, 0) else 4
        fitting = query.shape[-1] % aligned == 0 and value.shape[-1] % aligned == 0
        readable = mask is None or mask.shape[-1] == 1 or mask.stride(-1) == 1
        supported = query.dtype == torch.float32 or (low and not (query.dtype == torch.bfloat16 and self._capability < (8, 0)))
        return same_heads and fitting and readable and supported


def _cudnn_drops(probability: float) -> bool:
    return is_before(_DROPS_SIXTEENTHS) or 16 * probability % 1 == 0


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    zero = aten.scalar_tensor.default(0.0, dtype=dtype, device=mask.device)
    return torch.where(mask, zero, aten.scalar_tensor.default(float("-inf"), dtype=dtype, device=mask.device))


def _padded(tensor: torch.Tensor, alignment: int) -> torch.Tensor:
    missing = -tensor.shape[-1] % alignment
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _aligned(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return a mask that the kernel can read: it reads steps of 16 elements, so a mask with other row lengths is copied."""
    length = mask.shape[-1]
    if length % 16:
        mask = torch.nn.functional.pad(mask, (0, -length % 16))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
