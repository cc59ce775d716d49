"""The recorder for jobs without CUDA code: the null GPU's recorder on top of our own history."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from vramcast.tracer.format.operators import ASKS_AS, FACTORIES, STEP
from vramcast.tracer.format.trace import LOOPS, Category, Trace
from vramcast.tracer.hooks.torch_api import current_autograd_node, current_graph_task_id, sequence_number
from vramcast.tracer.program.model_program import DATA_RANGE
from vramcast.tracer.recording.emptied_cache import of_convolutions
from vramcast.tracer.recording.profile import Contexts, ProfilePlace
from vramcast.tracer.recording.recorder import Recorder, annotate
from vramcast.tracer.rules.history import History


class PortableRecorder(Recorder):
    """Marks phases and categories as `Recorder` does; operators and modules are known at once, without a profiler."""

    def __init__(self, history: History, on_card: Callable[[Any], bool]) -> None:
        super().__init__(profile=False)
        self.data = False  # the batch is being moved
        self._history = history
        self._on_card = on_card
        self._optimizer = ""
        self._modules_by_sequence: dict[int, str] = {}

    @property
    def in_step(self) -> bool:
        """Return whether an optimizer's step is running."""
        return bool(self._optimizer)

    def start(self) -> None:
        """Begin recording."""
        self._watch()

    def stop(
        self, *, header: dict[str, Any], workspace_sizes: Iterable[int] = (), workspaces: Iterable[int] = ()
    ) -> Trace:  # fmt: skip
        """Stop recording and return the trace; it has no addresses, and the simulator computes `peaks`."""
        for handle in self._handles:
            handle.remove()
        trace = self._history.trace({**header, "marks_empty_cache": True})
        contexts, handed = Contexts.of(self._history.contexts), (set(workspace_sizes), set(workspaces))
        trace = annotate(trace, self._marks, self._step_ends(), self._tags, contexts, *handed)
        trace = of_convolutions(trace, self._history.searches)
        loops = self.loops(trace, is_whole=False)  # a model's job stands for a longer one
        return dataclasses.replace(trace, address=np.zeros_like(trace.address), header={**trace.header, LOOPS: loops})

    def note(self) -> None:
        """Tie the running operator to its module; called for every operator on the card."""
        stack = self._local.__dict__.get("stack")
        if stack and current_autograd_node() is None:
            # The operator's node was just made: its number is the last one issued.
            number = sequence_number() - 1
            self._modules_by_sequence.setdefault(number, stack[-1][2])

    def watch_data(self, func: Any, args: Any) -> None:
        """Note whether the batch is being moved; called for operators that are not on the card."""
        if func.namespace == "profiler":
            self.data = "enter" in func.__name__ and args[0] == DATA_RANGE

    def context(self, op: str, args: Iterable[Any]) -> ProfilePlace:
        """Return the place of the operator `op`, which runs now with these arguments and requests memory."""
        given = [argument for argument in args if isinstance(argument, torch.Tensor)]
        dtypes = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in given)
        return self._place(op)._replace(shapes=tuple(tuple(tensor.shape) for tensor in given), dtypes=dtypes)

    def _place(self, op: str) -> ProfilePlace:
        op = ASKS_AS.get(op, op)
        node = current_autograd_node()
        if node is not None:
            module = self._modules_by_sequence.get(node._sequence_nr(), "")
            return ProfilePlace(node.name() if op in FACTORIES else op, module, True, self.data, False)
        stack = self._local.__dict__.get("stack")
        module = stack[-1][2] if stack else ""
        if self._optimizer and op in FACTORIES:
            op = self._optimizer
        backward = current_graph_task_id() != -1
        return ProfilePlace(op, module, backward, self.data, bool(self._optimizer))

    def _position(self) -> int:
        return self._history.position

    def _tag(self, category: Category, tensors: Iterable[Any]) -> None:
        found = [self._history.address(t.untyped_storage()) for t in tensors if self._on_card(t)]
        addresses = [address for address in found if address is not None]
        if addresses:
            self._tags.append((self._position(), category, addresses))

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        super()._before_step(optimizer, args, kwargs)
        self._optimizer = STEP

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._optimizer = ""
        super()._after_step(optimizer, args, kwargs)
