"""Extrapolation of a job to a large batch from small ones; exact if the sequence of requests does not depend on the batch.

A block's size is affine in the batch size (a x batch + b) if every tensor has the batch as one dimension or not at all. Two
small batches give a and b of every row; a third checks them for this job. This is arithmetic on sizes, not curve fitting: a
job whose requests differ between the three batches is rejected.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.tracer.format.trace import Trace

_SAME = ("action", "block", "step", "phase", "op", "category")


def at_batch(traces: dict[int, Trace], batch_size: int) -> Trace:
    """Return the job's trace at `batch_size`.

    Args:
        traces: The job's traces at three or more batch sizes: two give the sizes, the others are checked.
    Raises:
        UsageError: fewer than three traces.
        CannotEstimate: the requests are not the same at all batches, or a size is not affine in the batch.
    """
    if len(traces) < 3:
        raise UsageError(f"{len(traces)} traces are given: pass three batch sizes, two to solve and one to check.")
    (low, first), *others = sorted(traces.items())
    for other, trace in others:
        if any(not np.array_equal(getattr(first, name), getattr(trace, name)) for name in _SAME) or first.ops != trace.ops:
            raise CannotEstimate(
                f"The job makes other requests on a batch of {other} than on {low}: trace it at the batch size you need."
            )
    high, last = others[-1]
    rise = last.size_bytes - first.size_bytes
    slope = rise // (high - low)
    for batch, trace in traces.items():
        if not np.array_equal(first.size_bytes + slope * (batch - low), trace.size_bytes):
            raise CannotEstimate(
                f"The job's blocks are not affine in the batch size (checked at {batch}): trace it at the batch size you need."
            )
    header = {**first.header, "extrapolated_from_batches": sorted(traces), "batch": batch_size}
    return replace(first, size_bytes=first.size_bytes + slope * (batch_size - low), header=header)
