"""Modified traces for comparisons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vramcast.tracer.format.trace import EVENT_COLUMNS, Trace


def without_accesses(trace: Trace) -> Trace:
    """Return the trace without its READ and WRITE rows."""
    kept = ~trace.is_access()
    moved = np.append(np.cumsum(kept) - 1, -1)  # -1 for rows without a block
    columns = {name: getattr(trace, name)[kept] for name in EVENT_COLUMNS}
    return replace(trace, **{**columns, "block": moved[columns["block"]]})
