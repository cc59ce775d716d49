"""One job at a large batch from the same job at small ones: exact where the sequence of requests does not depend on the batch.

A block's size is affine in the batch size (a x batch + b) when every tensor has the batch as one dimension or not at all. Two
small batches give a and b of every row; a third says whether it is true of this job. It is arithmetic on sizes, not a guess
at a curve: a job whose rows are not the same requests at all three batches is refused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.tracer.format.trace import Trace

_SAME = ("action", "block", "step", "phase", "op", "category")


def at_batch(traces: dict[int, Trace], batch_size: int) -> Trace:
    """Return what the job's trace would be at `batch_size`.

    Args:
        traces: The job's traces at three or more batch sizes: two give the sizes, the others are checked.
    Raises:
        UsageError: fewer than three traces.
        CannotEstimate: the requests are not the same at all batches, or a size is not affine in the batch.
    """
    if len(traces) < 3:
        raise UsageError(f"{len(traces)} traces are given: three batch sizes are needed, two to solve and one to check.")
    (low, first), *others = sorted(traces.items())
    for other, trace in others:
        if any(not np.array_equal(getattr(first, name), getattr(trace, name)) for name in _SAME) or first.ops != trace.ops:
            raise CannotEstimate(
                f"The job makes other requests on a batch of {other} than on {low}: trace it at the batch that is wanted."
            )
    high, last = others[-1]
    rise = last.size_bytes - first.size_bytes
    slope = rise // (high - low)
    for batch, trace in traces.items():
        if not np.array_equal(first.size_bytes + slope * (batch - low), trace.size_bytes):
            raise CannotEstimate(
                f"The job's blocks are not affine in the batch size (checked at {batch}): trace it at the batch that is wanted."
            )
    header = {**first.header, "extrapolated_from_batches": sorted(traces), "batch": batch_size}
    return replace(first, size_bytes=first.size_bytes + slope * (batch_size - low), header=header)
