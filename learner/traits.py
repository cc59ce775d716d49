"""Traits of a job, in words, which define its class: they decide how far the simulation may be off.

A residual's distribution depends on few facts: whether a library chooses workspaces and whose choice was queried, whether a
compiler fused the job, whether shapes depend on data, how many ranks there are, how much the torch that ran it differs from
the job's own. Each is a trait with few values; `learner/residual_tree.py` finds those that matter in measured runs.

traits.toml defines their values (`MEANINGS`), and which are no worse than others (`NO_WORSE`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from vramcast.core.units import GIB, MIB
from vramcast.hardware.stack import Stack, same_minor
from vramcast.tracer.format.ledger import CallHandling
from vramcast.tracer.format.loops import loops_of
from vramcast.tracer.format.operators import OperatorKind
from vramcast.tracer.format.trace import CIRCUMSTANCES, Action, Category, Phase, Trace

Traits: TypeAlias = Mapping[str, str]

_TABLE: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MEANINGS: Final[dict[str, str]] = _TABLE["meanings"]
NO_WORSE: Final = {(trait, value): other for trait, pairs in _TABLE["no_worse"].items() for value, other in pairs.items()}
CONVOLUTION: Final = "convolution"
ALONE: Final = "alone"
_CONVOLUTIONS: Final = (OperatorKind.CONVOLUTION, OperatorKind.CONVOLUTION_BACKWARD)
_LITTLE: Final = 0.05  # arbitrary: the patch embedding of a vision transformer is below, every network of convolutions above
_SOFTMAXES_OF_A_LOSS: Final = 2  # spec: torch 2.11, cross_entropy: log_softmax, and its gradient
_SMALL_SHARE: Final = 0.02  # arbitrary: share of the reserved peak
_SIZES: Final = ((256 * MIB, "below 256 MiB"), (GIB, "below 1 GiB"), (4 * GIB, "below 4 GiB"))  # arbitrary
_DISTANCES: Final = ((0.01, "alike"), (0.1, "near"))  # arbitrary: of the reserved peaks under two cuDNNs
_ALIKE: Final = 0.01  # arbitrary: allowed difference between the forward passes of equal batches in the memory that they keep
_DRAWN: Final = frozenset({CallHandling.LARGEST, CallHandling.BRANCH, CallHandling.OPEN})


def traits_of(
    trace: Trace,
    *,
    gpu: str,
    reserved: int,
    tracer: str,
    torch: str,
    stack: Stack,
    asked_cudnn: str,
    ranks: int,
    is_full: bool,
    batches_vary: bool = False,
    without_workspaces: int | None = None,
    larger: int | None = None,
    is_unlike: bool = False,
    is_old: bool = False,
) -> dict[str, str]:
    """Return the traits of one job, each of `MEANINGS`.

    Args:
        trace: Trace with operators, phases, steps, the ledger, and facts recorded while it ran.
        gpu: The card's key.
        reserved: Its peak of segments in bytes.
        tracer: The tracer that made the trace.
        torch: Version of the torch that ran it.
        stack: The stack that the estimate is for.
        asked_cudnn: Version of the cuDNN that chose its plans; "": none did.
        ranks: Number of ranks.
        is_full: It does not fit on its card.
        batches_vary: Its batches are declared to vary; its steps' requests reveal that too.
        without_workspaces: Its reserved peak without the workspaces of convolutions, in bytes; None: it has none.
        larger: Its reserved peak with the plans of a second cuDNN, in bytes; None: no second one was queried.
        is_unlike: `asked_cudnn` prefers other engines than the stack's, or none chose.
        is_old: The stack's cuDNN cannot be queried.
    """
    kinds, share = _operators(trace)
    operators = kind_of(kinds.keys(), kinds.get(OperatorKind.SOFTMAX, 0))
    convolutions = _convolutions(trace) if operators == CONVOLUTION else "none"
    ledger, seen = trace.ledger, trace.header.get(CIRCUMSTANCES, {})
    retries = trace.header.get("peaks", {}).get("retries", 0)
    return {
        "operators": operators,
        "convolutions": convolutions,
        **of_convolutions(convolutions, share, is_old=is_old),
        "cudnns": ALONE if operators == CONVOLUTION and is_unlike else "one",
        **of_plans(reserved, without_workspaces if operators == CONVOLUTION else None, larger),
        "plans": _plans(operators, stack, asked_cudnn),
        "mode": "training" if (trace.phase == Phase.BACKWARD).any() else "inference",
        "compiled": "yes" if any(operator.is_compiled for operator in trace.operators) else "no",
        "values": "drawn" if any(entry.kind in _DRAWN for entry in ledger) else "known",
        "batches": "vary" if batches_vary or _steps_vary(trace) else "alike",
        "ranks": "one" if ranks == 1 else "several",
        "speed": "decides" if any(entry.kind is CallHandling.SPEED for entry in ledger) else "any",
        "torch": "same" if stack.torch is None or same_minor(stack.torch, torch) else "other",
        "unknown": "some" if any(entry.is_unknown for entry in ledger) else "none",
        "card": "full" if is_full or retries else "free",
        "size": next((name for most, name in _SIZES if reserved < most), "4 GiB or more"),
        "precision": _precision(str(seen.get("precision", "fp32"))),
        "tracer": tracer,
        "gpu": gpu,
    }


def completed(traits: Traits, features: Mapping[str, float]) -> dict[str, str]:
    """Return the traits of an example, with those that are younger than it: from its features, or else the harder ones."""
    found = dict(traits)
    if "share" in found or not found:
        return found
    convolutions = found.get("convolutions", "plain" if found.get("operators") == CONVOLUTION else "none")
    share = sum(features.get(f"bytes_{kind.name.lower()}", 1.0) for kind in _CONVOLUTIONS)
    of_training = ("optimizer_states", "peak_gradient_share", "peak_in_backward")
    return {
        **found,
        **of_convolutions(convolutions, share, is_old=found.get("plans") == "other"),
        "mode": "training" if not features or any(features[name] > 0 for name in of_training) else "inference",
    }


def of_plans(reserved: int, without_workspaces: int | None, larger: int | None) -> dict[str, str]:
    """Return the traits that follow from a job's reserved peaks under other plans, as far as known; see `traits_of`."""
    workspaces = "none"
    if without_workspaces is not None:
        workspaces = "small" if without_workspaces >= (1 - _SMALL_SHARE) * reserved else "large"
    if larger is None:
        return {"workspaces": workspaces}
    distance = next((name for most, name in _DISTANCES if larger <= (1 + most) * reserved), "apart")
    return {"workspaces": workspaces, "cudnns": distance}


def kind_of(kinds: Collection[OperatorKind], softmaxes: float) -> str:
    """Return the kind of model of a job, by its operators: the first of `MEANINGS["operators"]` that holds."""
    if not {OperatorKind.CONVOLUTION, OperatorKind.CONVOLUTION_BACKWARD}.isdisjoint(kinds):
        return CONVOLUTION
    if OperatorKind.RECURRENT in kinds:
        return "recurrent"
    return "attention" if OperatorKind.ATTENTION in kinds or softmaxes > _SOFTMAXES_OF_A_LOSS else "dense"


def of_convolutions(convolutions: str, share: float, *, is_old: bool) -> dict[str, str]:
    """Return the traits that follow from a job's convolutions.

    Args:
        convolutions: The trait of that name.
        share: Share of convolutions in the bytes that its step requests.
        is_old: The cuDNN of the job's stack cannot be queried.
    """
    return {
        "share": "none" if convolutions == "none" else "little" if share < _LITTLE else "much",
        "depthwise": "none" if convolutions != "depthwise" else "unqueried" if is_old else "queried",
    }


def _operators(trace: Trace) -> tuple[dict[OperatorKind, int], float]:
    """Return the blocks of each kind in the second step, or the only one, and the share of convolutions in their bytes."""
    step = min(1, int(trace.step.max(initial=0)))
    rows = np.flatnonzero((trace.action == Action.ALLOC) & (trace.step == step))
    kinds = np.array([*(operator.kind for operator in trace.operators), OperatorKind.OTHER])[trace.operator[rows]]
    found, counts = np.unique(kinds[trace.operator[rows] >= 0], return_counts=True)
    of_them = np.isin(kinds, _CONVOLUTIONS)
    total = float(trace.size_bytes[rows].sum()) or 1.0
    share = float(trace.size_bytes[rows[of_them]].sum()) / total
    return dict(zip(map(OperatorKind, found.tolist()), counts.tolist(), strict=True)), share


def _convolutions(trace: Trace) -> str:
    return "depthwise" if any(operator.is_depthwise for operator in trace.operators) else "plain"


def _steps_vary(trace: Trace) -> bool:
    """Return whether its forward passes keep different sizes.

    One smaller size among equal ones is ignored: an epoch's last batch is smaller because it has the remaining samples. A
    step without its end (the budget's time was up) or an evaluation after the last one is ignored too.
    """
    rows = (trace.action == Action.ALLOC) & (trace.phase == Phase.FORWARD) & (trace.step >= 0)
    rows &= trace.category == Category.ACTIVATION
    if ends := [loop.ends[-1] for loop in loops_of(trace) if loop.phase == "training"]:
        rows[max(ends) :] = False
    sums = np.bincount(trace.step[rows], weights=trace.size_bytes[rows])
    sums = sums[sums > 0]
    if not len(sums):
        return False
    largest, smaller = sums.max(), sums[sums < (1 - _ALIKE) * sums.max()]
    is_first = bool(sums[0] >= (1 - _ALIKE) * largest)
    return bool(len(smaller)) and (not is_first or smaller.min() < (1 - _ALIKE) * smaller.max())


def _plans(operators: str, stack: Stack, asked_cudnn: str) -> str:
    if operators != CONVOLUTION:
        return "none"
    wanted = stack.cudnn or asked_cudnn
    return "exact" if asked_cudnn and asked_cudnn.split(".")[:3] == wanted.split(".")[:3] else "other"


def _precision(seen: str) -> str:
    return "amp" if seen.startswith("amp-") else "fp32" if seen == "fp32" else "half"
