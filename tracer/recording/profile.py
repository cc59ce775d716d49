"""The operator, module and pass of each allocation, from PyTorch's profiler (Kineto).

`watcher.py` gives the same facts at a fraction of the cost; this is for jobs that need more than that, the shapes of operators'
arguments or their accesses, and for machines where the watcher does not compile.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from vramcast.tracer.format.operators import FACTORIES, Shape
from vramcast.tracer.hooks.torch_api import EventType
from vramcast.tracer.program.model_program import DATA_RANGE
from vramcast.tracer.recording.job_profiles import JobProfiles

MODULE_RANGE = "vramcast::"
_MEMORY = "[memory]"  # spec: torch 2.11, Result::name in torch/csrc/profiler/collection.cpp


class ProfilePlace(NamedTuple):
    """The known facts about a place in the profile."""

    op: str = ""
    module: str = ""
    backward: bool = False
    data: bool = False
    optimizer: bool = False
    shapes: tuple[Shape, ...] = ()  # of the operator's tensor arguments, with their dtypes
    dtypes: tuple[str, ...] = ()


class Contexts(NamedTuple):
    """The address of each CUDA allocation in time order, and its place as a number in a table."""

    address: npt.NDArray[np.uint64]
    place: npt.NDArray[np.int64]
    table: list[ProfilePlace]

    @classmethod
    def of(cls, allocations: Sequence[tuple[int, ProfilePlace]]) -> Contexts:
        """Return the columns of (address, place) of each allocation."""
        table: dict[ProfilePlace, int] = {}
        numbers = [table.setdefault(place, len(table)) for _, place in allocations]
        return cls(np.array([address for address, _ in allocations], np.uint64), np.array(numbers, np.int64), list(table))


class Profile:
    """The facts about allocations in PyTorch's profile, part by part.

    Args:
        profiles: The switch that leaves the profiler to us.
        has_shapes: Whether to record the shapes of operators' arguments.
    Attributes:
        roots: The events of the last part.
    """

    def __init__(self, profiles: JobProfiles, *, has_shapes: bool) -> None:
        self._profiles = profiles
        self._has_shapes = has_shapes
        self.roots: list[Any] = []
        self._profiler: Any = None
        self._modules_by_sequence: dict[int, str] = {}
        self._plain: set[str] = set()
        self._addresses = array("Q")
        self._places = array("I")
        self._table: dict[ProfilePlace, int] = {}

    def start(self) -> None:
        """Begin a part."""
        # Not torch.profiler's: that one imports Inductor, which needs a user with a name.
        self._profiler = torch.autograd.profiler.profile(profile_memory=True, record_shapes=self._has_shapes)
        with warnings.catch_warnings(), self._profiles.ours():
            warnings.simplefilter("ignore")
            self._profiler.__enter__()

    def drain(self) -> None:
        """Take the records so far from PyTorch, which keeps a kilobyte per operator."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """End a part, and record its facts about allocations."""
        with warnings.catch_warnings(), self._profiles.ours():
            warnings.simplefilter("ignore")
            self._profiler.__exit__(None, None, None)
        self.roots = self._profiler.kineto_results.experimental_event_tree()
        self._note(self.roots)

    def contexts(self) -> Contexts:
        """Return the context of every CUDA allocation.

        Frees are left out: many happen between operators, where autograd's threads report no operator.
        """
        return Contexts(np.array(self._addresses, np.uint64), np.array(self._places, np.int64), list(self._table))

    def _note(self, roots: Iterable[Any]) -> None:
        """Record the facts in the events of the next part."""
        found: list[tuple[int, int, ProfilePlace]] = []
        # Depth first, with the context inherited from parent to child. The sequence number joins the two passes: the
        # forward operator is always walked first, because a number belongs to a backward node only after a forward operator
        # received it. This code runs for every operator of the job and reads as few fields as possible: a field costs a
        # microsecond.
        levels: list[tuple[Iterator[Any], ProfilePlace]] = [
            (iter(sorted(roots, key=attrgetter("start_time_ns"))), ProfilePlace())
        ]
        allocation, plain, has_shapes = EventType.Allocation, self._plain, self._has_shapes
        while levels:
            events, context = levels[-1]
            for event in events:
                name: str = event.name
                if name == _MEMORY and event.tag == allocation:
                    fields = event.extra_fields
                    if fields.alloc_size > 0 and fields.device.type == "cuda":
                        found.append((event.start_time_ns, fields.ptr, context))
                    continue
                inner = _enter(event, name, context, self._modules_by_sequence, plain, has_shapes)
                children = event.children
                if children:
                    levels.append((iter(children), inner))
                    break
            else:
                levels.pop()
        found.sort(key=lambda item: item[0])
        for _, address, context in found:
            self._addresses.append(address)
            self._places.append(self._table.setdefault(context, len(self._table)))


def _enter(
    event: Any, name: str, context: ProfilePlace, modules_by_sequence: dict[int, str], plain: set[str], has_shapes: bool
) -> ProfilePlace:
    """Return the context inside an event; `plain` collects the names of operators that are not ranges."""
    op, module, backward, data, optimizer, _, _ = context
    if name not in plain:
        if event.tag != EventType.TorchOp:
            return context
        if name.startswith(MODULE_RANGE):
            return context._replace(module=name[len(MODULE_RANGE) :])
        if name == DATA_RANGE:
            return context._replace(data=True)
        if name.startswith("Optimizer."):
            return ProfilePlace(op or name.split("#")[0], module, backward, data, True)
        if name.startswith("autograd::engine"):
            from_forward = modules_by_sequence.get(event.extra_fields.sequence_number, "")
            return ProfilePlace(name.rpartition(" ")[2], from_forward, True, data, optimizer)
        plain.add(name)
    if module and not backward:
        number = event.extra_fields.sequence_number
        if number >= 0:
            modules_by_sequence.setdefault(number, module)
    if op and name in FACTORIES:
        return context
    return ProfilePlace(name, module, backward, data, optimizer, *(_inputs(event) if has_shapes else ()))


def _inputs(event: Any) -> tuple[tuple[Shape, ...], tuple[str, ...]]:
    given = [argument for argument in event.extra_fields.inputs if hasattr(argument, "sizes")]
    return tuple(tuple(tensor.sizes) for tensor in given), tuple(str(tensor.dtype).removeprefix("torch.") for tensor in given)
