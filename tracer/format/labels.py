"""Words for a reader: names which may come from anywhere, and where in the job something happens."""

from __future__ import annotations

from vramcast.tracer.format.trace import Phase, Trace


def shown(name: str, limit: int = 100) -> str:
    """Return `name`, which may come from anywhere, fit to be shown: printable, and its end when it is longer than `limit`."""
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name[-limit - 1 :])
    return printable if len(printable) <= limit else "…" + printable[1 - limit :]


def place(trace: Trace, row: int, limit: int = 60) -> str:
    """Return where in the job event `row` happens, as a reader is told: step, phase, module, operator."""
    operator, step = trace.operator_at(row), int(trace.step[row])
    words = [f"step {step}" if step >= 0 else "before step 0", Phase(trace.phase[row]).name.lower()]
    return ", ".join([*words, *(shown(name, limit) for name in (operator.module, operator.name) if name)])
