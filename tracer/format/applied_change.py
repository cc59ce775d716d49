"""The changes that a program can have or had while it ran, in a trace's header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vramcast.core.errors import TraceFileError
from vramcast.core.text import printable
from vramcast.tracer.format.trace import CHANGES, Trace

_LONGEST = 200  # arbitrary: characters of a text; ours have some 50


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change of a running program, or a value of it that could be changed.

    Attributes:
        value: The program's own value; None: unknown, or the change has none.
        now: The value in its place; None: it was not replaced.
        most: The largest value that the program allows; None: unknown.
        limit: What limits it, in words.
        way: The setting or line with which a user makes the change; "": it was not applied.
        obstacle: Why it could not be applied; "": unknown.
        search: The function with which the program searches for the value itself; "": none.
        owner: The library with the setting: Trainer (transformers, TRL) or Ultralytics; "": the program's own.
    """

    value: int | None = None
    now: int | None = None
    most: int | None = None
    limit: str = ""
    way: str = ""
    obstacle: str = ""
    search: str = ""
    owner: str = ""


def applied_change(trace: Trace, name: str) -> AppliedChange:
    """Return what a trace says about a change.

    Args:
        trace: The trace of a command.
        name: A name of `RunOptions.changes`.

    Raises:
        TraceFileError: The header is damaged.
    """
    try:
        said: dict[str, Any] = trace.header.get(CHANGES, {}).get(name, {})
        value, now, most = (None if said.get(key) is None else int(said[key]) for key in ("value", "now", "most"))
        texts = [printable(str(said.get(key, "")), _LONGEST) for key in ("limit", "way", "obstacle", "search", "owner")]
    except (AttributeError, TypeError, KeyError, ValueError) as error:  # a trace may be untrusted
        raise TraceFileError(f"The trace's changes are damaged ({type(error).__name__}: {error}): record it again.") from None
    return AppliedChange(value, now, most, *texts)
