"""The timeline of a trace in the Trace Event Format, for ui.perfetto.dev, chrome://tracing and Speedscope.

Each rank is a process with counters (allocated bytes by category, reserved bytes, bytes of the process), slices of steps and
phases, and a mark at each peak. One event of the allocator is one microsecond, because the format has only times.

spec: Google, "Trace Event Format" (JSON object format; phases C, X, i and M)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from vramcast.core.text import printable
from vramcast.core.units import gib
from vramcast.simulator import curves
from vramcast.tracer.format.trace import Trace, step_number
from vramcast.views import style

_MAX_POINTS: Final = 20_000  # arbitrary: a file of some 8 MB
_STEPS, _PHASES = 1, 2  # threads: steps and phases need not nest


def draw(trace: Trace, *, card_bytes: int | None = None, title: str = "", beside: style.Beside = None) -> str:
    """Return the view as JSON. For the arguments, see `vramcast.views.save`."""
    events: list[dict[str, Any]] = []
    for process, (name, one) in enumerate(style.ranks(trace, beside), start=1):
        named = ", ".join(filter(None, (printable(title), name))) or "GPU memory of a trace"
        events += [{**event, "pid": process} for event in _events(one, named, card_bytes)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"a microsecond is": "an event"}})


def _events(trace: Trace, name: str, card_bytes: int | None) -> Iterator[dict[str, Any]]:
    """Yield the events of one rank, without their process."""
    yield {"ph": "M", "name": "process_name", "tid": 0, "args": {"name": name}}
    for thread, kind in ((_STEPS, "steps"), (_PHASES, "phases")):
        yield {"ph": "M", "name": "thread_name", "tid": thread, "args": {"name": kind}}
    for first, end, step in curves.steps(trace):
        yield {"ph": "X", "name": f"step {step_number(step)}", "tid": _STEPS, "ts": first, "dur": end - first}
    for span in curves.spans(trace):
        phase, length = span.phase.name.lower(), span.end - span.first
        yield {
            "ph": "X",
            "name": phase,
            "tid": _PHASES,
            "ts": span.first,
            "dur": length,
            "args": {"step": step_number(span.step)},
        }
    live, process = curves.peak_of_live(trace), curves.peak_of_process(trace)
    for kind, size_bytes, row in (("allocated", live.live_bytes, live.row), ("process", process.process_bytes, process.row)):
        if row >= 0:
            yield {"ph": "i", "s": "p", "name": f"{kind} peak {gib(size_bytes)}", "tid": 0, "ts": row}
    if card_bytes is not None:
        yield _counter("card", 0, {"bytes": card_bytes})
    yield from _counters(trace)


def _counters(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield the counters after each event of a trace, or after a sample that includes both peaks if it is long."""
    rows = curves.sampled_rows(trace, _MAX_POINTS)
    names = [look.name for look in style.LOOKS.values()]
    columns = (curves.live_by_category(trace, rows).T, trace.reserved_bytes()[rows], curves.process_bytes(trace)[rows])
    for row, live, reserved, process in zip(rows.tolist(), *(column.tolist() for column in columns), strict=True):
        yield _counter("allocated", row, dict(zip(names, live, strict=True)))
        yield _counter("reserved", row, {"bytes": reserved})
        yield _counter("process", row, {"bytes": process})


def _counter(name: str, row: int, values: dict[str, int]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "tid": 0, "ts": row, "args": values}
