"""Loops recorded in a trace's header (`tracer/program/loops.py` writes them)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vramcast.core.errors import TraceFileError
from vramcast.tracer.format.trace import LOOPS, Trace


@dataclass(frozen=True, slots=True)
class SeenLoop:
    """A loop recorded in a trace's header.

    Attributes:
        number: Number of the loop, from 0 in order of first step.
        phase: training, evaluation or generation.
        ends: For each step, the row after its last one.
        length: Number of steps, if known.
        is_open: Whether the loop continues after the observed part.
    """

    number: int
    phase: str
    ends: tuple[int, ...]
    length: int | None
    is_open: bool


def loops_of(trace: Trace) -> list[SeenLoop]:
    """Return the loops recorded in a trace's header.

    Raises:
        TraceFileError: The header is damaged.
    """
    said = trace.header.get(LOOPS)
    if not said:
        return []
    try:
        return [_loop(one, len(trace)) for one in said["all"]]
    except (TypeError, KeyError, ValueError) as error:  # a trace may come from anywhere
        raise TraceFileError(f"The trace's loops are damaged ({type(error).__name__}: {error}): record it again.") from None


def _loop(said: Mapping[str, Any], n_rows: int) -> SeenLoop:
    ends = tuple(map(int, said["ends"]))
    if len(ends) < 2 or any(not 0 <= row <= n_rows for row in ends) or any(b < a for a, b in pairwise(ends)):
        raise ValueError(f"steps end at rows {ends[:5]}")
    length = said["length"]
    return SeenLoop(
        int(said["number"]), str(said["phase"]), ends, None if length is None else int(length), bool(said["is_open"])
    )
