"""Features of one job: numbers from its trace, its simulation and its context.

Sizes enter as logarithms and as shares of the reserved peak, because the learner corrects a ratio. GPUMemNet's own features
are included: counts of layers by kind, parameters, activations, batch size, and the activation function as an angle.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from vramcast.core.units import GIB, MIB
from vramcast.hardware.device import Device
from vramcast.learner.traits import CONVOLUTION, kind_of
from vramcast.learner.workspaces import without_workspaces
from vramcast.simulator.card import Card
from vramcast.simulator.replay import recorded_settings
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.operators import ACTIVATIONS, OperatorKind, OperatorLibrary
from vramcast.tracer.format.trace import CIRCUMSTANCES, Action, Category, Phase, Trace

_LARGE_BYTES: Final = MIB  # spec: the size from which the allocator uses its large pool
# Parts of cuDNN other than convolutions: cuDNN 9 is several libraries, each loaded at first use, and their kernels take
# memory of their own.
_PARTS: Final = (OperatorLibrary.CUDNN_NORMALIZATION, OperatorLibrary.CUDNN_RECURRENT, OperatorLibrary.CUDNN_ATTENTION)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts about a job that its requests and operators lack.

    Attributes:
        device: The card, with its own size.
        batch_size: First dimension of the input; 0: unknown.
        input_elements: Elements of all inputs; 0: unknown.
        precision: As in `Job`.
        unknown: Kinds of calls that were answered by assumption or refused.
        context_bytes: Memory that the process takes on the card outside the reserved peak.
        settled: The peaks are those from the second step on.
    """

    device: Device
    batch_size: int = 0
    input_elements: int = 0
    precision: str = "fp32"
    checkpointing: bool = False
    channels_last: bool = False
    cudnn_benchmark: bool = False
    unknown: int = 0
    context_bytes: int = 0
    settled: bool = False

    @classmethod
    def seen(
        cls, trace: Trace, device: Device, *, unknown: int = 0, context_bytes: int = 0, settled: bool = False
    ) -> Circumstances:
        """Return the facts recorded by the tracer while the job ran: the same for models and scripts."""
        return cls(device, unknown=unknown, context_bytes=context_bytes, settled=settled, **trace.header.get(CIRCUMSTANCES, {}))


def features(
    trace: Trace, circumstances: Circumstances, *, allocated: int | None = None, reserved: int | None = None
) -> dict[str, float]:
    """Return the named features of one job; all names are always present, in the same order.

    Args:
        trace: Trace of the job, with categories, phases and operators.
        circumstances: Further facts.
        allocated, reserved: Its peaks in bytes; default: those in the trace's header.
    """
    peaks = trace.header.get("peaks", {})
    allocated = (peaks["allocated"] if allocated is None else allocated) or 1
    reserved = (peaks["reserved"] if reserved is None else reserved) or 1
    requested = int(peaks.get("requested", allocated))
    return {
        **_sizes(trace, reserved, allocated, requested, circumstances.device),
        **_on_card(trace, reserved, circumstances),
        **_at_peak(trace),
        **_operators(trace),
        **_workspaces(trace, reserved, settled=circumstances.settled),
        **_circumstances(circumstances),
        "optimizer_states": _optimizer_states(trace),
    }


def parts_of(trace: Trace, libraries: Collection[str]) -> tuple[str, ...]:
    """Return the libraries that a job uses, with the parts of cuDNN, sorted: they decide its context on a stack."""
    used = {operator.library for operator in trace.operators}
    return tuple(sorted({*libraries, *(part.name.lower().replace("_", " ") for part in _PARTS if part in used)}))


def family_of(known: Mapping[str, float]) -> str:
    """Return the kind of model of a job by the operators that it ran, which selects the calibration of its bounds.

    For examples with features it equals the trait `operators` of `vramcast.learner.traits`.

    Args:
        known: Result of `features`.
    """

    kinds = {kind for kind in OperatorKind if kind is not OperatorKind.OTHER and known[f"count_{kind.name.lower()}"] > 0}
    return CONVOLUTION if known["workspace_count"] > 0 else kind_of(kinds, known["count_softmax"])


def _log(value: float) -> float:
    return math.log2(max(value, 1.0))


def _sizes(trace: Trace, reserved: int, allocated: int, requested: int, device: Device) -> dict[str, float]:
    allocs = trace.action == Action.ALLOC
    sizes = trace.size_bytes[allocs]
    large = sizes > _LARGE_BYTES
    return {
        "log_reserved": _log(reserved),
        "log_allocated": _log(allocated),
        "requested_share": requested / reserved,
        "allocated_share": allocated / reserved,
        "near_capacity": reserved / device.total_bytes,
        "log_allocations": _log(int(allocs.sum())),
        "log_steps": _log(int(trace.step.max(initial=0)) + 1),
        "largest_block_share": float(sizes.max(initial=0)) / reserved,
        "large_allocations_share": float(large.mean()) if len(sizes) else 0.0,
        "log_segments": _log(int((trace.action == Action.SEGMENT_ALLOC).sum())),
    }


def _on_card(trace: Trace, reserved: int, of: Circumstances) -> dict[str, float]:
    """Return the job's reserved memory on its card, where the allocator may release and retry, and whether it dies."""
    if reserved + of.context_bytes < of.device.total_bytes:
        return {"on_card_share": 1.0, "on_card_dies": 0.0}
    in_trace = bool((trace.action == Action.CONTEXT).any())
    card = Card(of.device.total_bytes, context_bytes=0 if in_trace else of.context_bytes)
    found = simulate(trace, recorded_settings(trace), card, columns=False)
    return {"on_card_share": found.reserved / reserved, "on_card_dies": float(found.out_of_memory is not None)}


def _at_peak(trace: Trace) -> dict[str, float]:
    peak_bytes, row = trace.peak_live()
    total = peak_bytes or 1
    held = trace.by_category_at(row) if row >= 0 else dict.fromkeys(Category, 0)
    held[Category.ACTIVATION] += held.pop(Category.KV_CACHE)  # one category in the traces that trained the artifact
    phase = int(trace.phase[row]) if row >= 0 else -1
    return {
        **{f"peak_{category.name.lower()}_share": held[category] / total for category in held},
        "log_parameters": _log(held[Category.PARAMETER]),
        "log_activations": _log(held[Category.ACTIVATION]),
        "peak_step": float(trace.step[row]) if row >= 0 else -1.0,
        **{f"peak_in_{phase_.name.lower()}": float(phase == phase_) for phase_ in Phase},
    }


def _operators(trace: Trace) -> dict[str, float]:
    """Return, for each kind of operator, its number of blocks per step and its share of their bytes; and GPUMemNet's angle."""
    step = min(1, int(trace.step.max(initial=0)))
    rows = np.flatnonzero((trace.action == Action.ALLOC) & (trace.step == step))
    kinds = np.array([*(operator.kind for operator in trace.operators), OperatorKind.OTHER])[trace.operator[rows]]
    total = float(trace.size_bytes[rows].sum()) or 1.0
    found: dict[str, float] = {}
    for kind in OperatorKind:
        if kind is not OperatorKind.OTHER:
            chosen = rows[kinds == kind]
            found[f"count_{kind.name.lower()}"] = float(len(chosen))
            found[f"bytes_{kind.name.lower()}"] = float(trace.size_bytes[chosen].sum()) / total
    found["count_depthwise"] = float(np.isin(trace.operator[rows], _depthwise(trace)).sum())
    activations = np.zeros(ACTIVATIONS)
    used, counts = np.unique(trace.operator[rows], return_counts=True)
    for at, count in zip(used.tolist(), counts.tolist(), strict=True):
        number = trace.operators[at].activation if at >= 0 else None
        if number is not None:
            activations[number] += count
    angle = 2 * math.pi * int(activations.argmax()) / ACTIVATIONS if activations.any() else None
    found["activation_sin"] = math.sin(angle) if angle is not None else 0.0
    found["activation_cos"] = math.cos(angle) if angle is not None else 0.0
    return found


def _depthwise(trace: Trace) -> list[int]:
    """Return the operators that are PyTorch's own depthwise convolutions."""
    return [at for at, operator in enumerate(trace.operators) if operator.is_depthwise]


def _workspaces(trace: Trace, reserved: int, *, settled: bool) -> dict[str, float]:
    """Return the workspaces of libraries, and the job's memory without those of convolutions."""
    rows = np.flatnonzero((trace.action == Action.ALLOC) & trace.is_convolution_workspace())
    forward = rows[trace.phase[rows] == Phase.FORWARD]
    backward = rows[trace.phase[rows] == Phase.BACKWARD]
    sizes = trace.size_bytes[rows]
    distinct = np.unique(sizes)[::-1]
    bare = without_workspaces(trace, settled=settled) or reserved
    return {
        "workspace_count": float(len(rows)),
        "workspace_distinct": float(len(distinct)),
        "workspace_largest_share": float(distinct[0]) / reserved if len(distinct) else 0.0,
        "workspace_second_share": float(distinct[1]) / reserved if len(distinct) > 1 else 0.0,
        "workspace_forward_share": float(trace.size_bytes[forward].max(initial=0)) / reserved,
        "workspace_backward_share": float(trace.size_bytes[backward].max(initial=0)) / reserved,
        "log_workspace_largest": _log(float(distinct[0])) if len(distinct) else 0.0,
        "workspace_distinct_share": float(distinct[distinct > _LARGE_BYTES].sum()) / reserved,
        "without_workspaces_share": bare / reserved,
    }


def _circumstances(of: Circumstances) -> dict[str, float]:
    major, minor = of.device.compute_capability
    return {
        "batch_size": float(of.batch_size),
        "log_batch_size": _log(of.batch_size),
        "log_input_elements": _log(of.input_elements),
        "is_autocast": float(of.precision.startswith("amp-")),
        "is_half": float(of.precision in ("bf16", "fp16")),
        "checkpointing": float(of.checkpointing),
        "channels_last": float(of.channels_last),
        "cudnn_benchmark": float(of.cudnn_benchmark),
        "unknown": float(of.unknown),
        "card_gib": of.device.total_bytes / GIB,
        "compute_capability": 10.0 * major + minor,
        "sm_count": float(of.device.sm_count),
    }


def _optimizer_states(trace: Trace) -> float:
    """Return the bytes of the optimizer's state divided by those of the parameters."""
    allocs = trace.action == Action.ALLOC
    state, parameters = (
        int(trace.size_bytes[allocs & (trace.category == category)].sum())
        for category in (Category.OPTIMIZER_STATE, Category.PARAMETER)
    )
    return float(round(state / parameters)) if parameters else 0.0


def _names() -> tuple[str, ...]:
    """Return the features' names in order, from an empty job."""
    from vramcast.hardware.cards import DEVICES

    empty = Trace.build({"action": [], "size_bytes": [], "block": []})
    return tuple(features(empty, Circumstances(DEVICES["h200"]), allocated=0, reserved=0))


NAMES: Final = _names()
