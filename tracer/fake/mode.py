"""The fake card as a dispatch mode below autograd: every operator on it makes the requests of CUDA's operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from vramcast.core.errors import CannotEstimate
from vramcast.hardware.device import Device
from vramcast.tracer.fake.answers import ANSWERS
from vramcast.tracer.fake.readings import NAMED
from vramcast.tracer.fake.recurrent import RULES as RECURRENT
from vramcast.tracer.fake.tensor import META, CudaTensor, InsideKernel, check_ordinal, on_card
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.tensors import tensors_in
from vramcast.tracer.hooks.torch_api import DYNAMO, DisableTorchFunction, TorchDispatchMode, tree_map_only
from vramcast.tracer.rules.convolution_workspaces import ConvolutionWorkspaces
from vramcast.tracer.rules.ruled_card import RuledCard
from vramcast.tracer.values.host_reads import KnownReads

aten = torch.ops.aten
_SCALAR = aten.scalar_tensor.default
# Their CUDA kernels require operands of one dtype; the meta kernels do not check.
_OF_ONE_DTYPE = frozenset(
    op.default for op in (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.addbmm, aten.mv, aten.addmv, aten.dot, aten.vdot)
) | {aten.convolution.default, aten.cudnn_convolution.default, aten.linear.default}


class CardMode(TorchDispatchMode):
    """A dispatch mode in which `device="cuda"` works: it computes shapes and records requests, and nothing else happens.

    Operators on CPU tensors run as usual. A value that the host reads from the card is taken from `known`, or zero.

    Attributes:
        building: While the model is built, the meta device belongs to the initializer of meta models, not to the card.
        host_reads: Number of host reads of unknown values.
        known: Values of the next reads.
        call: Returns the name of the current Python call, if calls are followed.
        card: Records the requests.
    """

    def __init__(self, device: Device, convolution_workspaces: ConvolutionWorkspaces) -> None:
        super().__init__()
        self.building = False
        self.host_reads = 0
        self.known = KnownReads()
        self.call: Callable[[], str] = str
        self.card = RuledCard(device, convolution_workspaces, _on_card, inside=InsideKernel, plans=RECURRENT)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with DisableTorchFunction():  # tracers of values see the job's calls, not those made here
            return self._dispatch(func, args, kwargs or {})

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        on_card = [isinstance(t, CudaTensor) for t in tensors_in(args, kwargs)]
        on_device, on_host = any(on_card), not all(on_card)
        device = kwargs.get("device")
        if func is _SCALAR and device is not None and self.call() == "__setitem__":
            # A number that Python writes into a tensor of the card: on CUDA it stays on the host.
            return func(*args, **{**kwargs, "device": torch.device("cpu")})
        if device is not None and (device.type == "cuda" or (device.type == "meta" and not self.building)):
            on_device = True
            check_ordinal(device)
            kwargs = {**kwargs, "device": META}
        if not on_device:
            self.card.recorder.watch_data(func, args)
            if kwargs.get("pin_memory"):  # only a driver can pin memory
                kwargs = {**kwargs, "pin_memory": False}
            return func(*args, **kwargs)
        self.card.recorder.note()
        _check_dtypes(func, args, kwargs)
        answer = ANSWERS.get(func) or NAMED.get(func._schema.name)
        if answer is not None:
            result = answer(self, func, args, kwargs)
            if result is not NotImplemented:
                return self._begin(func, args, kwargs, result)
        if self.card.takes_first(func, args):
            with InsideKernel():
                return self._begin(func, args, kwargs, args[0].detach())
        shapes = tree_map_only(torch.Tensor, _without_values, (args, kwargs)) if on_host else (args, kwargs)
        try:
            result = self.card.shapes.run(func, *shapes)
        except NotImplementedError:
            raise CannotEstimate(
                f"The fake tracer does not support {func.name()}: use --tracer nullgpu or --tracer cpu."
            ) from None
        return self._begin(func, args, kwargs, result)

    def _begin(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Return `result` as tensors of the card; record its new storages in CUDA's order."""
        results = result if isinstance(result, (tuple, list)) else (result,)
        self.card.play(func, args, kwargs, results)
        wrapped = [on_card(t) if isinstance(t, torch.Tensor) and t.device.type == "meta" else t for t in results]
        return type(result)(wrapped) if isinstance(result, (tuple, list)) else wrapped[0]


def _check_dtypes(func: Any, args: Any, kwargs: Any) -> None:
    """Raise as CUDA would if a product's operands have several dtypes."""
    if func not in _OF_ONE_DTYPE:
        return
    dtypes = list(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors_in(args, kwargs)))
    if len(dtypes) > 1:
        raise RuntimeError(f"{func.name()}: all operands must have the same dtype, but got {' and '.join(dtypes)}")


def _on_card(value: Any) -> bool:
    return isinstance(value, CudaTensor)


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, CudaTensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def refuse_compiled(module: torch.nn.Module, arguments: Any) -> None:
    """Raise before a compiled module's forward: torch.compile gives up below a dispatch mode and would take other memory."""
    has_compiler = f"{DYNAMO}.eval_frame" in sys.modules  # otherwise nothing can be compiled, and its import takes a second
    is_compiled = has_compiler and isinstance(module, torch_api.OptimizedModule)
    if is_compiled or getattr(module, "_compiled_call_impl", None) is not None:
        raise CannotEstimate(
            "The model is compiled (torch.compile), which the fake tracer cannot follow: "
            "use --tracer nullgpu, or trace the model before it is compiled."
        )
