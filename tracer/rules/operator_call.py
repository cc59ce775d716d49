"""One operator on the card, as the rules see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vramcast.hardware.device import Device
from vramcast.tracer.recording.profile import ProfilePlace
from vramcast.tracer.rules.convolution_workspaces import ConvolutionWorkspaces
from vramcast.tracer.rules.history import History
from vramcast.tracer.rules.reductions import split_bytes


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One operator on the card: its arguments, its results as meta tensors, and the requests it makes.

    Attributes:
        on_card: Whether an argument lies on the card.
        storage_of: Returns the storage that owns a result's memory.
    """

    func: Any
    args: Any
    kwargs: Any
    results: Any
    device: Device
    history: History
    context: ProfilePlace
    convolution_workspaces: ConvolutionWorkspaces
    on_card: Callable[[Any], bool]
    storage_of: Callable[[torch.Tensor], torch.UntypedStorage]

    @property
    def thread(self) -> int:
        """The thread of the job that runs it: 0, or 1 for autograd's."""
        return int(self.context.backward)

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument by its name in the schema."""
        if name in self.kwargs:
            return self.kwargs[name]
        names = [a.name for a in self.func._schema.arguments]
        at = names.index(name) if name in names else len(self.args)
        return self.args[at] if at < len(self.args) else default

    def begin(self, *indexes: int) -> None:
        """Request memory for results, in this order; a view, or a result that is no tensor, takes none."""
        for i in indexes:
            result = self.results[i]
            for tensor in result if isinstance(result, list) else [result]:
                if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                    storage = self.storage_of(tensor)
                    if not self.history.knows(storage):
                        self.history.begin(storage, tensor.untyped_storage().nbytes(), self.context)

    def begin_all(self) -> None:
        """Request memory for all results in the order in which the operator returns them."""
        self.begin(*range(len(self.results)))

    def ask(self, size_bytes: int) -> int:
        """Request bytes for the operator's own use; 0 makes no request."""
        return self.history.ask(size_bytes, self.context) if size_bytes else -1

    def free(self, *blocks: int) -> None:
        """Free blocks returned by `ask`."""
        for block in blocks:
            if block >= 0:
                self.history.free(block)

    def hold_copies(self, tensors: tuple[torch.Tensor, ...], memory_format: torch.memory_format) -> list[int]:
        """Request a copy of each tensor that is not in `memory_format`."""
        return [self.ask(t.nbytes) for t in tensors if not t.is_contiguous(memory_format=memory_format)]

    def hold_reduction(self, tensor: torch.Tensor, reduced: list[int], element_bytes: int) -> list[int]:
        """Request the buffers of a split reduction of `tensor`; return the blocks in the order of their frees."""
        split = split_bytes(tensor.shape, tensor.stride(), reduced, element_bytes, self.device)
        return [self.ask(n) for n in split][::-1] if split else []


Rule = Callable[[OperatorCall], None]
