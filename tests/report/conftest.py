"""Fixtures of the report's tests: an estimate small enough to count by hand, and the names of a hostile job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.hardware.context import context_bytes
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.simulator.trace_edits import with_context
from vramcast.tracer.format.operators import Operator
from vramcast.tracer.format.trace import Action, Category, Phase, Trace

MIB = 2**20
# Names of a malicious job.
HOSTILE = "</script></svg></style><script>alert(1)</script><!--\x1b[31m&\"'{{ 7*7 }}\u2028\ud800"


def trace_of(names: tuple[str, str, str]) -> Trace:
    """Return a trace of two segments: 100 MiB of parameters, 300 MiB of activations in two modules, 50 MiB of workspace.

    Args:
        names: Names of the first module, of the second, and of all operators.
    """
    first, second, op = names
    sizes = [100, 200, 100, 50]
    starts = [2**30, 2**30 + 100 * MIB, 2**31, 2**31 + 100 * MIB]
    return Trace.build(
        {
            "action": [Action.SEGMENT_ALLOC, Action.ALLOC, Action.ALLOC, Action.SEGMENT_ALLOC, Action.ALLOC, Action.ALLOC],
            "address": [2**30, starts[0], starts[1], 2**31, starts[2], starts[3]],
            "size_bytes": [size * MIB for size in (300, sizes[0], sizes[1], 200, sizes[2], sizes[3])],
            "block": [-1, 1, 2, -1, 4, 5],
            "step": [-1, -1, 0, 0, 0, 0],
            "phase": [Phase.BUILD, Phase.BUILD, *[Phase.FORWARD] * 4],
            "op": [-1, -1, 0, -1, 0, 0],
            "module": [-1, -1, 0, -1, 1, 1],
            "category": [7, Category.PARAMETER, Category.ACTIVATION, 7, Category.ACTIVATION, Category.WORKSPACE],
        },
        ops=[op],
        modules=[first, second],
    )


@pytest.fixture
def make() -> Callable[..., Estimate]:
    """Return a function that makes an estimate on an A100 of `memory_mib`: 450 MiB live, 500 MiB reserved, and the context."""

    def made(
        memory_mib: int | None = None,
        names: tuple[str, str, str] = ("layers.0.up", "layers.0.down", "aten::mm"),
        **changes: Any,
    ) -> Estimate:
        card = device("a100-40gb")
        context = context_bytes(card.key, 13, ("cublas",))
        values: dict[str, Any] = {
            "job": Job(
                card,
                target="file.py:model",
                batch=TensorSpec((8, 16)),
                training=Training(optimizer="adamw"),
                memory_bytes=memory_mib and memory_mib * MIB,
                has_card=changes.pop("has_card", True),
            ),
            "trace": with_context(trace_of(names), [(0, context.bytes)]),
            "allocated": 450 * MIB,
            "reserved": 500 * MIB,
            "process": 500 * MIB + context.bytes,
            "min_feasible": None,
            "context": context,
            "estimator": Estimator(),
            "bound": PublicBound(500 * MIB, frozenset({"cublas"})),
            "tracer": "nullgpu",
            "torch": "2.11.0",
            "cuda_major": 13,
            "steps": 3,
            "libraries": frozenset({"cublas"}),
        }
        return Estimate(**values | changes)

    return made


@pytest.fixture
def hostile(make: Callable[..., Estimate]) -> Estimate:
    """Return an estimate with hostile text everywhere in the job."""
    found = make(names=(HOSTILE, HOSTILE, HOSTILE), warnings=(HOSTILE,), unknown=(HOSTILE,), out_of_memory=HOSTILE)
    operators = [Operator.of(HOSTILE, HOSTILE)] * len(found.trace.operators)
    return replace(found, job=replace(found.job, target=HOSTILE), trace=replace(found.trace, operators=operators))
