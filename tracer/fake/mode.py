"""The card that is not there, as a dispatch mode below autograd: every operator on it asks for what CUDA's would ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch._meta_registrations
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from vramcast.devices import Device
from vramcast.errors import CannotEstimate
from vramcast.tracer.convolution_workspaces import ConvolutionWorkspaces
from vramcast.tracer.fake.answers import ANSWERS
from vramcast.tracer.fake.call import Call
from vramcast.tracer.fake.checks import check_dtypes, check_ordinal
from vramcast.tracer.fake.history import History
from vramcast.tracer.fake.readings import NAMED
from vramcast.tracer.fake.recorder import FakeRecorder
from vramcast.tracer.fake.requests import PLANS, UNMODELLED, Workspaces
from vramcast.tracer.fake.shapes import Shapes
from vramcast.tracer.fake.tensor import META, CudaTensor, InsideKernel, on_card
from vramcast.tracer.ledger import Code
from vramcast.tracer.step import DATA_RANGE
from vramcast.tracer.tensors import tensors_in
from vramcast.tracer.values.known import Known

_SCALAR = torch.ops.aten.scalar_tensor.default


class CardMode(TorchDispatchMode):
    """While active, `device="cuda"` works: shapes are computed, requests noted, nothing else happens.

    Operators on CPU tensors run as ever. What the host reads from the card is `known`, or zero.

    Attributes:
        building: While the model is built, the meta device is the hollow initialiser's and not the card.
        masking: While attention adds its mask to the scores, in place on CUDA.
        host_reads: How often the host read what nobody knows.
        known: What the next reads give.
        call: Returns the name of the Python call which runs now, as far as somebody follows them.
        unmodelled: What is left out (`UNMODELLED`), with how often it would have been asked for.
    """

    def __init__(
        self, history: History, recorder: FakeRecorder, device: Device, convolution_workspaces: ConvolutionWorkspaces
    ) -> None:
        super().__init__()
        self.building = False
        self.masking = False
        self.host_reads = 0
        self.known = Known()
        self.call: Callable[[], str] = str
        self.unmodelled: Counter[str] = Counter()
        self.workspaces = Workspaces(device)
        self._convolution_workspaces = convolution_workspaces
        self._shapes = Shapes()
        self._device = device
        self._history = history
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # who follows values sees what the job calls, not what happens in here
            return self._dispatch(func, args, kwargs or {})

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        on_card = [isinstance(t, CudaTensor) for t in tensors_in(args, kwargs)]
        on_device, on_host = any(on_card), not all(on_card)
        device = kwargs.get("device")
        if func is _SCALAR and device is not None and self.call() == "__setitem__":
            # The number which Python writes into a tensor of the card: on CUDA it stays on the host.
            return func(*args, **{**kwargs, "device": torch.device("cpu")})
        if device is not None and (device.type == "cuda" or (device.type == "meta" and not self.building)):
            on_device = True
            check_ordinal(device)
            kwargs = {**kwargs, "device": META}
        if not on_device:
            self._watch_data(func, args)
            if kwargs.get("pin_memory"):  # only a driver can
                kwargs = {**kwargs, "pin_memory": False}
            return func(*args, **kwargs)
        self._recorder.note()
        check_dtypes(func, args, kwargs)
        answer = ANSWERS.get(func) or NAMED.get(func._schema.name)
        if answer is not None:
            result = answer(self, func, args, kwargs)
            if result is not NotImplemented:
                return self._begin(func, args, kwargs, result)
        shapes = tree_map_only(torch.Tensor, _without_values, (args, kwargs)) if on_host else (args, kwargs)
        try:
            result = self._shapes.run(func, *shapes)
        except NotImplementedError:
            raise CannotEstimate(
                f"The fake tracer does not know what {func.name()} returns: use --tracer nullgpu or --tracer cpu."
            ) from None
        return self._begin(func, args, kwargs, result)

    def _watch_data(self, func: Any, args: Any) -> None:
        if func.namespace == "profiler":
            if "enter" in func.__name__:
                self._recorder.data = args[0] == DATA_RANGE
            else:
                self._recorder.data = False

    def _begin(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Return `result` as tensors of the card, its new storages noted in the order in which CUDA asks for them."""
        results = result if isinstance(result, (tuple, list)) else (result,)
        fresh = [t.untyped_storage() for t in results if isinstance(t, torch.Tensor) and t.device.type == "meta"]
        packet = func._overloadpacket
        plan = PLANS.get(packet, Call.begin_all)
        if any(not self._history.knows(s) for s in fresh) or plan is not Call.begin_all:
            context = self._recorder.context(func._schema.name)
            call = Call(
                func, args, kwargs, results, self._device, self._history, context, self._convolution_workspaces
            )  # fmt: skip
            if plan is Call.begin_all:
                plan(call)
            else:
                with InsideKernel():
                    plan(call)
            self.workspaces.take(call, context.backward)
            for storage in fresh:
                if not self._history.knows(storage):
                    self._history.begin(storage, 0, context)
            if packet in UNMODELLED:
                self.unmodelled[UNMODELLED[packet]] += 1
            elif packet is torch.ops.aten.cudnn_batch_norm and call.argument("training") and _is_channels_last(args[0]):
                self.unmodelled[Code.CHANNELS_LAST_NORM] += 1
        wrapped = [on_card(t) if isinstance(t, torch.Tensor) and t.device.type == "meta" else t for t in results]
        return type(result)(wrapped) if isinstance(result, (tuple, list)) else wrapped[0]


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return suggest_memory_format(tensor) in (torch.channels_last, torch.channels_last_3d)


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, CudaTensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
