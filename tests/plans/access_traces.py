"""Traces with READ and WRITE rows, handmade or random."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from vramcast.tracer.format.trace import Action, Trace

MIB = 2**20


class Script:
    """A writer of traces: `alloc` and `free` blocks by name, `operator`s with a duration that touch some of them."""

    def __init__(self) -> None:
        self.columns: dict[str, list[int]] = {n: [] for n in ("action", "size_bytes", "block", "step", "time_us")}
        self.now_us = 0
        self.step = -1
        self._rows: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def _row(self, action: Action, name: str) -> None:
        values = (action, self._sizes[name], self._rows[name], self.step, self.now_us)
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)

    def alloc(self, name: str, size_bytes: int) -> None:
        self._rows[name], self._sizes[name] = len(self.columns["action"]), size_bytes
        self._row(Action.ALLOC, name)

    def free(self, name: str) -> None:
        self._row(Action.FREE_REQUESTED, name)
        self._row(Action.FREE_COMPLETED, name)

    def operator(self, takes_us: int, *names: str) -> None:
        """Add an operator that touches the blocks `names` and writes the last of them."""
        for name in names:
            self._row(Action.WRITE if name == names[-1] else Action.READ, name)
        self.now_us += takes_us

    def trace(self) -> Trace:
        header = {"clock": {"source": "by hand", "end_us": self.now_us}}
        return Trace.build({name: np.array(column, np.int64) for name, column in self.columns.items()}, header=header)

    def row(self, name: str) -> int:
        return self._rows[name]


def chain(sizes_mib: list[int], takes_us: int, n_steps: int = 2, state_mib: int = 0) -> tuple[Trace, Script]:
    """Return a training job: layer i writes activation `a<i>`, the way back reads and frees it; `w<i>` are weights, `state`
    lasts.
    """
    script = Script()
    for i in range(len(sizes_mib)):
        script.alloc(f"w{i}", MIB)
    if state_mib:
        script.alloc("state", state_mib * MIB)
    for step in range(n_steps):
        script.step = step
        for i, size in enumerate(sizes_mib):
            script.alloc(f"a{i}", size * MIB)
            script.operator(takes_us, *([f"a{i - 1}"] if i else []), f"w{i}", f"a{i}")
        for i in reversed(range(len(sizes_mib))):
            script.operator(takes_us, f"a{i}", f"w{i}")
            script.free(f"a{i}")
        if state_mib:
            script.operator(takes_us, "state", "w0")
    return script.trace(), script


@st.composite
def access_traces(draw: st.DrawFn) -> Trace:
    """Draw a job of three equal steps: lasting blocks, and blocks within a step, touched at random."""
    script = Script()
    sizes = st.integers(1, 40 * MIB)
    lasting = [f"l{i}" for i in range(draw(st.integers(0, 5)))]
    for name in lasting:
        script.alloc(name, draw(sizes))
    program: list[tuple[str, list[str], int]] = []
    live: list[str] = []
    n_born = 0
    for _ in range(draw(st.integers(1, 25))):
        for _ in range(draw(st.integers(0, 2))):
            live.append(f"b{n_born}")
            program.append(("alloc", [live[-1]], draw(sizes)))
            n_born += 1
        if lasting + live:
            touched = draw(st.lists(st.sampled_from(lasting + live), min_size=1, max_size=4, unique=True))
            program.append(("operator", touched, draw(st.integers(1, 3000))))
        if live and draw(st.booleans()):
            program.append(("free", [live.pop(draw(st.integers(0, len(live) - 1)))], 0))
    program += [("alloc", ["last"], 512), ("operator", ["last"], 1), *(("free", [name], 0) for name in [*live, "last"])]
    for script.step in range(3):
        for kind, names, number in program:
            if kind == "alloc":
                script.alloc(names[0], number)
            elif kind == "operator":
                script.operator(number, *names)
            else:
                script.free(names[0])
    return script.trace()
