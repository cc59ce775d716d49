"""A job's trace at another batch size: equal to the one traced there, or rejected."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.accuracy.scripts.affine_batch import at_batch
from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.jobs.job import Job, TensorSpec
from vramcast.tracer.format.trace import Action, Trace
from vramcast.tracer.protocol.job_result import Result

Run = Callable[..., Result]


def blocks(*sizes: int, op: str = "aten::add") -> Trace:
    events = {"action": [Action.ALLOC] * len(sizes), "size_bytes": sizes, "block": range(len(sizes)), "op": [0] * len(sizes)}
    return Trace.build(events, ops=[op])


def test_batch_is_first_dimension(make_job: Callable[..., Job]) -> None:
    job = make_job(target="file.py:f", batch={"x": TensorSpec((8, 3)), "n": 5}, labels="8:int64")
    assert job.with_batch(2).batch == {"x": TensorSpec((2, 3)), "n": 5}
    assert job.with_batch(2).labels == TensorSpec((2,), "int64")
    assert job.batch["x"].shape == (8, 3)


def test_extrapolated_trace_equals_traced_one(on_cpu: Run) -> None:
    def traced(batch: int) -> Trace:
        options = {"batch": f"{batch}x512", "labels": f"{batch}:int64<10", "optimizer": "adam"}
        result = on_cpu("Shared", **options)
        assert result.trace is not None
        return result.trace

    there = traced(11)
    made = at_batch({n: traced(n) for n in (2, 3, 5)}, 11)
    for name in ("action", "size_bytes", "block", "step", "phase", "category"):
        assert np.array_equal(getattr(made, name), getattr(there, name)), name
    assert made.header["extrapolated_from_batches"] == [2, 3, 5]


def test_solves_sizes_from_outer_batches() -> None:
    traces = {2: blocks(100, 28), 3: blocks(100, 38), 5: blocks(100, 58)}
    assert at_batch(traces, 700).size_bytes.tolist() == [100, 7008]


@pytest.mark.parametrize(
    ("third", "said"),
    [
        (blocks(100, 41), "not affine"),
        (blocks(100), "other requests on a batch of 3 than on 2"),
        (blocks(100, 38, op="aten::mul"), "other requests on a batch of 3 than on 2"),
    ],
)
def test_rejects_nonaffine_requests(third: Trace, said: str) -> None:
    with pytest.raises(CannotEstimate, match=said):
        at_batch({2: blocks(100, 28), 3: third, 5: blocks(100, 58)}, 8)


def test_two_batches_are_too_few() -> None:
    with pytest.raises(UsageError, match="2 traces are given: pass three batch sizes"):
        at_batch({2: blocks(4), 3: blocks(6)}, 8)
