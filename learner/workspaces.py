"""The memory of a job without its convolutions' workspaces, whose sizes depend on the plans that a library chose."""

from __future__ import annotations

import numpy as np

from vramcast.simulator.replay import recorded_settings
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.trace import Action, Trace


def settled_reserved(trace: Trace) -> int:
    """Return the reserved peak from the second step on, in bytes; of the whole trace if it has one step.

    The first step of a job with cudnn.benchmark searches for plans, and measured peaks often leave it out.
    """
    settled = trace.step >= 1
    return int(trace.reserved_bytes()[settled if settled.any() else slice(None)].max(initial=0))


def without_workspaces(trace: Trace, *, settled: bool = False) -> int | None:
    """Return the reserved peak without the workspaces of convolutions, in bytes; None if there are none.

    Args:
        trace: Trace of the job.
        settled: Whether the peak from the second step on counts, as in `settled_reserved`.
    """
    rows = np.flatnonzero((trace.action == Action.ALLOC) & trace.is_convolution_workspace())
    if not len(rows):
        return None
    played = simulate(trace.without_blocks(rows), recorded_settings(trace))
    return settled_reserved(played.replayed()) if settled else played.reserved
