"""Reads and writes of each block: READ and WRITE rows for a trace, and a clock, from the profile of the job.

    row  action   time_us   block    op
      7  ALLOC         41       7    aten::relu        the output begins
      8  READ          41       2    aten::relu        the rows of one operator follow the last ALLOC before its end
      9  WRITE         41       7    aten::relu        and have the time at which it begins;
     10  FREE...       52       2                      later rows have the time at which it ends

PyTorch's profiler records the storages passed to each operator, and the allocations inside it. There is no other
instrumentation, so the job makes the same requests as without. The card's execution is modeled: one operator after the
other, each with the duration given by the roofline (vramcast/hardware/throughput.py).

An operator is replaced by the operators inside it if they touch everything that it touches; products, convolutions and
attention stay whole.

Known limitations: storages passed in other ways than as an argument (as to a custom kernel) are not seen; an operator
without allocations is placed before frees that may have preceded it, so live bytes during it are an upper bound.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from vramcast.hardware.throughput import Roofline
from vramcast.tracer.format.operators import FORMS, READ_BY_HOST, UNTOUCHING, Form, Operator
from vramcast.tracer.format.trace import Action, Phase, Trace
from vramcast.tracer.hooks.torch_api import EventType, schemas_of_operator

_ENGINE = ("autograd::", "torch::autograd::", "vramcast::")
_CONVOLUTIONS = (Form.CONVOLUTION, Form.CUDNN_CONVOLUTION)


@dataclass(slots=True)
class OperatorRun:
    """One operator of the profile.

    Attributes:
        name: torch's name.
        end_ns: When it ended on the host.
        reads, writes: Address of each storage, and the number of its bytes touched.
        operations: A multiplication and an addition are two; 0 if only memory counts.
        unit: The computing unit: `fp32`, `tf32` or `half`.
        of_optimizer: Whether it belongs to an optimizer's step.
    """

    name: str
    end_ns: int
    reads: dict[int, int]
    writes: dict[int, int]
    operations: float = 0.0
    unit: str = "fp32"
    of_optimizer: bool = False


@dataclass(slots=True)
class _Inside:
    """The contents of an event: addresses touched and allocated, {address: bytes}, and whether any memory was."""

    touched: set[int] = field(default_factory=set)
    allocated: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)  # those of `allocated` not freed again


def operators(roots: Iterable[Any]) -> tuple[list[OperatorRun], list[int]]:
    """Return the operators of a profile in the order of their ends, and the times of CUDA allocations (ns).

    Args:
        roots: `experimental_event_tree()` of a profile with shapes and memory.
    """
    found: list[OperatorRun] = []
    times: list[int] = []
    for root in roots:
        _walk(root, found, times)
    return sorted(found, key=lambda operator: operator.end_ns), sorted(times)


def with_accesses(trace: Trace, found: list[OperatorRun], times: list[int], rows: list[int], roofline: Roofline) -> Trace:
    """Return `trace` with READ and WRITE rows and a modeled clock in `time_us`.

    Args:
        trace: From the allocator's history.
        found: Operators in order.
        times: Time of each allocation in the profile, ascending.
        rows: The ALLOC rows of these allocations, ascending.
        roofline: The card's roofline.
    """
    placed = [0, *(row + 1 for row in rows)]
    blocks = _LiveBlocks(trace)
    table = {one: index for index, one in enumerate(trace.operators)}
    new: dict[str, list[int]] = {name: [] for name in ("place", "block", "action", "operator", "time_us", "optimizer")}
    clock_us, clocks = 0, [(0, 0)]  # (place, time from there on)
    for operator in found:
        place = placed[min(bisect.bisect_right(times, operator.end_ns), len(rows))]
        touched = blocks.at(place, operator)
        if not touched:
            continue
        moved_bytes = sum(size_bytes for _, size_bytes in touched.values())
        by = table.setdefault(Operator.of(operator.name), len(table))
        for block, (action, _) in touched.items():
            values = (place, block, action, by, clock_us, operator.of_optimizer)
            for column, value in zip(new.values(), values, strict=True):
                column.append(value)
        clock_us += roofline.duration_us(operator.operations, moved_bytes, operator.unit)
        clocks.append((place, clock_us))
    current = np.searchsorted([place for place, _ in clocks], np.arange(len(trace)), side="right") - 1
    timed = dataclasses.replace(
        trace,
        operators=list(table),
        time_us=np.array([time for _, time in clocks], np.int64)[current],
        header={**trace.header, "clock": {"source": roofline.source, "end_us": clock_us}},
    )
    at, named = np.array(new["place"], np.int64), np.array(new["block"], np.int64)
    before = np.maximum(at - 1, 0)
    said = {"step": trace.step[before], "phase": np.where(new["optimizer"], Phase.OPTIMIZER, trace.phase[before])}
    of_block = {name: getattr(trace, name)[named] for name in ("address", "size_bytes", "stream")}
    columns = {name: new[name] for name in ("action", "operator", "time_us")}
    return timed.insert(at, {**said, **of_block, **columns}, of=named)


class _LiveBlocks:
    """The blocks by address, while places in the trace go by."""

    def __init__(self, trace: Trace) -> None:
        self._address = trace.address.tolist()
        self._is_alloc = (trace.action == Action.ALLOC).tolist()
        self._size_bytes = trace.size_bytes.tolist()
        self._freed = trace.ends().tolist()
        self._latest: dict[int, int] = {}
        self._row = 0

    def at(self, place: int, operator: OperatorRun) -> dict[int, tuple[Action, int]]:
        """Return {block: (action, bytes)} of the blocks that `operator` touches just before row `place`; places never
        decrease.
        """
        for row in range(self._row, place):
            if self._is_alloc[row]:
                self._latest[self._address[row]] = row
        self._row = place
        touched: dict[int, tuple[Action, int]] = {}
        for action, storages in ((Action.READ, operator.reads), (Action.WRITE, operator.writes)):
            for address, size_bytes in storages.items():
                block = self._latest.get(address, -1)
                if block >= 0 and self._freed[block] >= place:
                    known = touched.get(block, (action, 0))[1]
                    touched[block] = (action, min(known + size_bytes, self._size_bytes[block] * (2 if known else 1)))
        return touched


# ------------------------------------------------------------------------------------------------ the profile
def _walk(event: Any, found: list[OperatorRun], times: list[int]) -> _Inside:
    """Append the operators under `event` to `found`, and return the contents of the event."""
    first, inside = len(found), _Inside()
    for child in event.children:
        if child.tag == EventType.Allocation:
            _note(child, inside, times)
        else:
            below = _walk(child, found, times)
            inside.touched |= below.touched
            inside.allocated |= below.allocated
            inside.kept |= below.kept
    if event.tag == EventType.Allocation:
        _note(event, inside, times)
        return inside
    name = event.name
    if name.startswith("Optimizer."):
        for operator in found[first:]:
            operator.of_optimizer = True
    if event.tag != EventType.TorchOp or "::" not in name or name.startswith(_ENGINE):
        return inside
    if name in UNTOUCHING and len(found) == first:
        return inside
    arguments = event.extra_fields.inputs
    mine = {address for tensor in _tensors(arguments) if (address := _address(tensor))}
    if len(found) > first and name not in FORMS and mine <= inside.touched:
        return inside
    written = _written(name, len(arguments))
    if len(found) == first and not inside.allocated and not written and name != READ_BY_HOST:
        return inside  # no new memory: a view
    del found[first:]
    operator = OperatorRun(name, event.end_time_ns, {}, dict(inside.allocated))
    for number, argument in enumerate(arguments):
        for tensor in _tensors([argument]):
            if address := _address(tensor):
                storages = operator.writes if number in written else operator.reads
                storages[address] = storages.get(address, 0) + math.prod(tensor.sizes) * tensor.dtype.itemsize
    for address in inside.touched - mine - inside.allocated.keys():
        operator.reads[address] = 0
    operator.operations, operator.unit = _operations(name, arguments, inside)
    found.append(operator)
    inside.touched |= mine | inside.allocated.keys()
    return inside


def _note(event: Any, inside: _Inside, times: list[int]) -> None:
    fields = event.extra_fields
    if fields.device.type != "cuda":
        return
    if fields.alloc_size > 0:
        times.append(event.start_time_ns)
        inside.allocated[fields.ptr] = inside.kept[fields.ptr] = fields.alloc_size
    else:
        inside.kept.pop(fields.ptr, None)


def _tensors(arguments: Iterable[Any]) -> Iterable[Any]:
    for argument in arguments:
        if isinstance(argument, list):
            yield from _tensors(argument)
        elif hasattr(argument, "storage_data_ptr"):
            yield argument


def _address(tensor: Any) -> int:
    """Return the address of the storage on the card, 0 for others."""
    return (tensor.storage_data_ptr or 0) if tensor.device.type == "cuda" else 0


@cache
def _written(name: str, n_arguments: int) -> frozenset[int]:
    schemas = schemas_of_operator(name)
    written = [
        frozenset(i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
        for schema in schemas
        if len(schema.arguments) == n_arguments
    ]
    return written[0] if written else frozenset()


def _operations(name: str, arguments: list[Any], inside: _Inside) -> tuple[float, str]:
    """Return an operator's operations and the unit that computes them; counted like torch.utils.flop_counter."""
    form = FORMS.get(name)
    if form is None:
        return 0.0, "fp32"
    shapes: list[Any] = [getattr(argument, "sizes", None) for argument in arguments]
    tensor = next(argument for argument in arguments if hasattr(argument, "sizes"))
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    convolves = form in (*_CONVOLUTIONS, Form.CONVOLUTION_BACKWARD, Form.RECURRENT)
    # torch's defaults: cuDNN may use TF32, products of matrices may not.
    allowed = torch.backends.cudnn.allow_tf32 if convolves else torch.backends.cuda.matmul.allow_tf32
    unit = "half" if half else "tf32" if tensor.dtype is torch.float32 and allowed else "fp32"
    if form in (Form.PRODUCT, Form.SUM_AND_PRODUCT):
        first = int(form is Form.SUM_AND_PRODUCT)
        return 2.0 * math.prod(shapes[first]) * shapes[first + 1][-1], unit
    if form in _CONVOLUTIONS:
        weight = shapes[1]
        output = max(inside.kept.values(), default=0) // tensor.dtype.itemsize
        transposed = form is Form.CONVOLUTION and bool(arguments[6])
        elements = math.prod(shapes[0]) if transposed else output
        return 2.0 * elements * math.prod(weight[1:]), unit
    if form is Form.CONVOLUTION_BACKWARD:
        elements = math.prod(shapes[1] if arguments[7] else shapes[0])
        return 2 * 2.0 * elements * math.prod(shapes[2][1:]), unit
    if form is Form.RECURRENT:
        weights = sum(math.prod(w.sizes) for w in _tensors([arguments[1]]))
        return 2.0 * weights * math.prod(shapes[0][:-1]), unit
    backward = form is Form.ATTENTION_BACKWARD
    query, key, value = shapes[1:4] if backward else shapes[:3]
    pairs = 2.0 * math.prod(query[:-1]) * key[-2]
    return pairs * (3 * query[-1] + 2 * value[-1] if backward else query[-1] + value[-1]), unit
