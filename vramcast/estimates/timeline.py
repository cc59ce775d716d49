"""The sizes of an estimated job from event to event."""

from __future__ import annotations

from vramcast.core.units import gib
from vramcast.simulator import curves
from vramcast.tracer.format.trace import Phase, Trace, step_number


class Timeline(list[tuple[int, str, int, int]]):
    """A list of (step, phase, live bytes, reserved bytes), with a representation of one line."""

    def __repr__(self) -> str:
        live = max((point[2] for point in self), default=0)
        reserved = max((point[3] for point in self), default=0)
        return f"<Timeline of {len(self):,} events: at most {gib(live)} allocated, {gib(reserved)} reserved>"


def timeline_of(trace: Trace) -> Timeline:
    """Return one tuple for each event that changed one of the sizes."""
    rows = curves.changed_rows(trace)
    names = [phase.name.lower() for phase in Phase]
    phases = [names[code] for code in trace.phase[rows].tolist()]
    live, reserved = curves.live_bytes(trace)[rows], trace.reserved_bytes()[rows]
    return Timeline(zip(map(step_number, trace.step[rows].tolist()), phases, live.tolist(), reserved.tolist(), strict=True))
