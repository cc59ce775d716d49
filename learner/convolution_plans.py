"""What a job would take if cuDNN chose other plans for its convolutions.

Which plan cuDNN takes depends on its version and on the card; the null GPU asks the cuDNN at hand. What differs between plans
is the workspace: nothing, or copies of the operands in another layout, as large as they are. So each of the three kinds of
convolution (forward, gradient of the data, gradient of the weights) is played again without workspaces, and with such copies;
all of them at once, and those of some width (how many channels) alone, because width is what plans are chosen by first.
The learner then sees between which of these a measured job lies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from vramcast.simulator.replay import recorded_settings
from vramcast.simulator.simulation import simulate
from vramcast.simulator.terms import resized, with_workspaces
from vramcast.tracer import operators
from vramcast.tracer.trace import Action, Category, Phase, Trace

Kind: TypeAlias = Literal["forward", "data", "weight"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
# Ends of the widths which are told apart, in channels. measured: GPUMemNet's networks of one width (A100, cuDNN 9.1) differ
# from cuDNN 9.19's plans between 43 and 63 channels, and again above 112.
WIDTHS: Final = (32, 64, 112)
_KERNELS: Final = (49, 25, 9, 1)  # arbitrary: sizes of the kernels that are common, the larger first
_STRIDES: Final = (1, 4)  # arbitrary: by which the data is larger than the output, for strides 1 and 2


@dataclass(slots=True)
class _Convolution:
    """One run of a convolution: its workspace's row (-1: none), the row after which one would stand, bytes of its operands.

    `width` is the place of its channels among WIDTHS; unknown ones count as narrow.
    """

    kind: Kind
    workspace: int
    row: int
    operands: int = 0
    width: int = 0


def channels(data_bytes: int, output_bytes: int, weight_bytes: int, element_bytes: int) -> float:
    """Return the geometric mean of a convolution's input and output channels, from the sizes alone; 0: they do not tell.

    weights = in x out x kernel, and data / output = in / out x stride^2: with the right kernel and stride both are whole.
    """
    if not (data_bytes and output_bytes and weight_bytes):
        return 0.0
    for kernel in _KERNELS:
        product, rest = divmod(weight_bytes, element_bytes * kernel)
        for stride in _STRIDES:
            into = math.sqrt(product * data_bytes / (output_bytes * stride))
            if not rest and into >= 1 and abs(into - round(into)) < 1e-6 * into and product % round(into) == 0:
                return math.sqrt(product)
    return 0.0


def convolutions(trace: Trace, element_bytes: int = 4) -> list[_Convolution]:
    """Return the convolutions of a trace in order; sizes of operands from what the same module allocates."""
    rows = np.flatnonzero((trace.action == Action.ALLOC) & operators.convolutions(trace.ops)[trace.op])
    inputs = _inputs(trace)
    found: list[_Convolution] = []
    outputs: dict[tuple[int, int], int] = {}  # (step, module) -> bytes of its output
    pending: dict[tuple[int, int], list[_Convolution]] = {}  # forward runs, whose input is known when the gradient is
    for group in _runs(trace, rows.tolist()):
        key = (int(trace.step[group[0]]), int(trace.module[group[0]]))
        is_workspace = [trace.category[row] == Category.WORKSPACE for row in group]
        tensors = [row for row, workspace in zip(group, is_workspace, strict=True) if not workspace]
        if not tensors:
            continue
        if trace.phase[group[0]] != Phase.BACKWARD:
            outputs[key] = int(trace.size_bytes[tensors[0]])
            one = _Convolution("forward", _workspace_after(group, is_workspace, tensors[0]), tensors[0])
            pending.setdefault(key, []).append(one)
            found.append(one)
            continue
        data, weight = (int(trace.size_bytes[row]) for row in (tensors[0], tensors[-1]))
        # The first convolution's data is the batch: nobody wants its gradient, so that no size is seen there.
        data = data if len(tensors) > 1 else inputs.get(key[0], 0)
        output = outputs.get(key, 0)
        operands = weight + output + data
        width = int(np.searchsorted(WIDTHS, channels(data, output, weight, element_bytes)))
        for kind, row in (("data", tensors[0]), ("weight", tensors[-1])):
            if kind == "weight" or len(tensors) > 1:
                found.append(_Convolution(kind, _workspace_after(group, is_workspace, row), row, operands, width))  # type: ignore[arg-type]
        for one in pending.pop(key, ()):
            one.operands, one.width = operands, width
    return found


def _inputs(trace: Trace) -> dict[int, int]:
    """Return of each step the bytes of its largest input."""
    found: dict[int, int] = {}
    for row in np.flatnonzero((trace.action == Action.ALLOC) & (trace.category == Category.INPUT)).tolist():
        step = int(trace.step[row])
        found[step] = max(found.get(step, 0), int(trace.size_bytes[row]))
    return found


def _runs(trace: Trace, rows: list[int]) -> list[list[int]]:
    """Return the rows of each run of an operator: neighbours with the same step, phase, operator and module."""
    found: list[list[int]] = []
    before = None
    for row in rows:
        here = (trace.step[row], trace.phase[row], trace.op[row], trace.module[row])
        if here != before or (here[1] != Phase.BACKWARD and trace.category[row] != Category.WORKSPACE):
            found.append([])
        found[-1].append(row)
        before = here
    return found


def _workspace_after(group: list[int], is_workspace: list[bool], tensor: int) -> int:
    """Return the workspace which is taken right after a tensor; -1: none."""
    place = group.index(tensor) + 1
    return group[place] if place < len(group) and is_workspace[place] else -1


def plan_features(trace: Trace, reserved: int, *, element_bytes: int = 4) -> dict[str, float]:
    """Return the reserved peaks under other plans, as shares of `reserved`; all 1 where nothing is convolved.

    Args:
        trace: The job's.
        reserved: Its reserved peak in bytes.
        element_bytes: Of the numbers which are convolved.
    """
    found = convolutions(trace, element_bytes)
    settings = recorded_settings(trace)

    def share(changed: Trace | None) -> float:
        return simulate(changed, settings, columns=False).reserved / reserved if changed is not None else 1.0

    shares = {}
    for kind in KINDS:
        for name, of_kind in _by_width([one for one in found if one.kind == kind]):
            shares[f"{kind}{name}_bare_share"] = share(_without(trace, of_kind))
            shares[f"{kind}{name}_copies_share"] = share(_with_copies(trace, of_kind))
    shares["copies_share"] = share(_with_copies(trace, found))
    return shares


def _by_width(some: list[_Convolution]) -> list[tuple[str, list[_Convolution]]]:
    """Return all, then those of each width, with what to call them."""
    apart = [(f"_{width}", [one for one in some if one.width == width]) for width in range(len(WIDTHS) + 1)]
    return [("", some), *apart]


def _without(trace: Trace, chosen: list[_Convolution]) -> Trace | None:
    """Return the trace without these workspaces; None where there are none."""
    rows = [one.workspace for one in chosen if one.workspace >= 0]
    return trace.without_blocks(rows) if rows else None


def _with_copies(trace: Trace, chosen: list[_Convolution]) -> Trace | None:
    """Return the trace with workspaces at least as large as the operands; None where they all are."""
    larger = {
        one.workspace: one.operands for one in chosen if one.workspace >= 0 and one.operands > trace.size_bytes[one.workspace]
    }
    fresh = {one.row: one.operands for one in chosen if one.workspace < 0 and one.operands}
    return with_workspaces(resized(trace, larger), fresh) if larger or fresh else None
