"""Tensors of a fake card: shape, strides, dtype and a storage with a lifetime, but without bytes.

To C++ such a tensor lives on the meta device, where kernels only compute shapes, but it carries the dispatch keys of CUDA:
autograd and autocast follow CUDA's rules. C++ sees no CUDA device, so no code asks for a device guard, which a CPU-only
build of torch does not have. To Python the tensor reports cuda:0 as its device.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracer.hooks.torch_api import (
    DisableTorchDispatch,
    PreserveDispatchKeyGuard,
    disabled_torch_function,
    include_meta,
)

CUDA = torch.device("cuda", 0)
META = torch.device("meta")


class CudaTensor(torch.Tensor):
    """A tensor on the card; created only by `on_card`."""

    _inside_kernel = False
    __torch_function__ = disabled_torch_function

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # noqa: D102
        return META if CudaTensor._inside_kernel else CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]  # noqa: D102
        return not CudaTensor._inside_kernel

    @property
    def is_meta(self) -> bool:  # type: ignore[override]  # noqa: D102
        return CudaTensor._inside_kernel

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"tensor(..., device='cuda:0', size={tuple(self.shape)}, dtype={self.dtype})"

    def get_device(self) -> int:  # noqa: D102
        return 0

    def data_ptr(self) -> int:  # noqa: D102
        return 0


def check_ordinal(device: torch.device) -> None:
    """Raise as CUDA would for a card other than cuda:0, the only one."""
    if device.type == "cuda" and device.index:
        raise RuntimeError(f"CUDA error: invalid device ordinal ({device}): the job has one card, cuda:0")


def _device(value: Any, card: torch.device) -> Any:
    """Return `card` if the value names the card; otherwise return the value unchanged."""
    is_card = (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, str) and value.startswith("cuda"))
        or (isinstance(value, torch.device) and value.type == "cuda")
    )
    if not is_card:
        return value
    check_ordinal(torch.device("cuda", value) if isinstance(value, int) else torch.device(value))
    return card


def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Replace `Tensor.to`: to C++, a tensor of the card is already on the meta device, and another goes to cuda:0.

    "cuda" without a number would make C++ ask for the current device, and a build without CUDA cannot answer that.
    """
    card = META if isinstance(tensor, CudaTensor) else CUDA
    if "device" in kwargs:
        kwargs["device"] = _device(kwargs["device"], card)
    return _cpp_to(tensor, *[_device(a, card) for a in args], **kwargs)


def cuda(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Replace `Tensor.cuda`."""
    return to(tensor, kwargs.get("device", args[0] if args else None) or CUDA)


def new_tensor(tensor: torch.Tensor, data: Any, **kwargs: Any) -> torch.Tensor:
    """Replace `Tensor.new_tensor`, in which C++ requests a tensor of the card from the driver."""
    return torch.tensor(data, **{"dtype": tensor.dtype, "device": tensor.device, **kwargs})


_cpp_to = torch.Tensor.to


def on_card(meta: torch.Tensor) -> CudaTensor:
    """Return the card's tensor with the shape and the storage of a meta tensor."""
    return torch.Tensor._make_subclass(CudaTensor, meta, False, device_for_backend_keys=CUDA)


class InsideKernel:
    """A context in which operators on `CudaTensor`s run their meta kernels: they compute shapes and return plain meta
    tensors.
    """

    def __enter__(self) -> None:
        self._dispatch = DisableTorchDispatch()
        self._keys = PreserveDispatchKeyGuard()
        self._dispatch.__enter__()
        self._keys.__enter__()
        include_meta(True)
        CudaTensor._inside_kernel = True

    def __exit__(self, *error: object) -> None:
        CudaTensor._inside_kernel = False
        self._keys.__exit__(*error)
        self._dispatch.__exit__(*error)
