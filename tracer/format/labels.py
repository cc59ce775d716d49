"""Where in the job something happens, in a reader's words."""

from __future__ import annotations

from vramcast.core.text import printable
from vramcast.tracer.format.trace import Phase, Trace


def place(trace: Trace, row: int, limit: int = 60) -> str:
    """Return where in the job event `row` happens, as a reader is told: step, phase, module, operator."""
    operator, step = trace.operator_at(row), int(trace.step[row])
    words = [f"step {step}" if step >= 0 else "before step 0", Phase(trace.phase[row]).name.lower()]
    return ", ".join([*words, *(printable(name, limit) for name in (operator.module, operator.name) if name)])
