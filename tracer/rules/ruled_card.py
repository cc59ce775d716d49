"""The card of a tracer that runs no CUDA code: it makes the requests that CUDA would make for each operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from vramcast.hardware.device import Device
from vramcast.tracer.format.ledger import Code
from vramcast.tracer.hooks.torch_api import suggest_memory_format
from vramcast.tracer.rules.convolution_workspaces import ConvolutionWorkspaces
from vramcast.tracer.rules.history import History
from vramcast.tracer.rules.in_place import takes_first
from vramcast.tracer.rules.operator_call import OperatorCall, Rule
from vramcast.tracer.rules.recorder import PortableRecorder
from vramcast.tracer.rules.rule_table import RULES, UNMODELLED, Workspaces
from vramcast.tracer.rules.shapes import Shapes


class RuledCard:
    """Applies the rules of this folder, and records the resulting requests.

    Args:
        device: The card to simulate.
        convolution_workspaces: Workspaces of its cuDNN.
        on_card: Whether a value is a tensor on the card.
        inside: Context in which meta kernels and rules run.
        plans: The tracer's own rules, by operator.
    Attributes:
        history: The requests so far.
        recorder: Records their place in the job.
        shapes: Results of operators.
        masking: Whether attention is adding its mask to the scores, in place on CUDA.
        unmodelled: Requests that are left out (`UNMODELLED`), with their number.
    """

    def __init__(
        self, device: Device, convolution_workspaces: ConvolutionWorkspaces, on_card: Callable[[Any], bool], *,
        inside: Callable[[], AbstractContextManager[Any]] = nullcontext, plans: dict[Any, Rule] | None = None,
    ) -> None:  # fmt: skip
        self.history = History()
        self.recorder = PortableRecorder(self.history, on_card)
        self.shapes = Shapes(inside)
        self.masking = False
        self.unmodelled: Counter[str] = Counter()
        self.workspaces = Workspaces(device)
        self.convolution_workspaces = convolution_workspaces
        self.device = device
        self.on_card = on_card
        self._inside = inside
        self._rules = RULES | (plans or {})

    def takes_first(self, func: Any, args: Any) -> bool:
        """Return whether the result will take the first argument's memory."""
        return takes_first(func, args, masking=self.masking, on_card=self.on_card)

    def has_rule(self, func: Any) -> bool:
        """Return whether the operator requests more than its results."""
        return func._overloadpacket in self._rules

    def play(
        self, func: Any, args: Any, kwargs: Any, results: Any,
        storage_of: Callable[[torch.Tensor], torch.UntypedStorage] = torch.Tensor.untyped_storage,
    ) -> None:  # fmt: skip
        """Record the requests of one operator, in CUDA's order.

        Args:
            func: The operator.
            args, kwargs: Its arguments.
            results: Its results, as meta tensors.
            storage_of: Returns the storage that owns a result's memory.
        """
        fresh = [storage_of(t) for t in results if isinstance(t, torch.Tensor) and t.device.type == "meta"]
        packet = func._overloadpacket
        plan = self._rules.get(packet)
        if plan is None and all(self.history.knows(s) for s in fresh):
            return
        context = self.recorder.context(func._schema.name, args)
        call = OperatorCall(
            func, args, kwargs, results, self.device, self.history, context, self.convolution_workspaces, self.on_card,
            storage_of,
        )  # fmt: skip
        if plan is None:
            call.begin_all()
        else:
            with self._inside():
                plan(call)
        self.workspaces.take(call, context.backward)
        for storage in fresh:
            if not self.history.knows(storage):
                self.history.begin(storage, 0, context)
        if packet in UNMODELLED:
            self.unmodelled[UNMODELLED[packet]] += 1
        elif packet is torch.ops.aten.cudnn_batch_norm and call.argument("training") and _is_channels_last(args[0]):
            self.unmodelled[Code.CHANNELS_LAST_NORM] += 1


def _is_channels_last(tensor: torch.Tensor) -> bool:
    return suggest_memory_format(tensor) in (torch.channels_last, torch.channels_last_3d)
