"""The longest prompt of a job that generates text with transformers, in a trace's header."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.core.errors import TraceFileError
from vramcast.core.text import printable
from vramcast.tracer.format.trace import PROMPT, Trace

_LONGEST = 200  # arbitrary: characters of a text; ours have some 50


@dataclass(frozen=True, slots=True)
class Prompt:
    """The longest prompt that a job passed to `generate`.

    Attributes:
        tokens: Its length.
        most: Length of the longest prompt that the call allows; None: unknown.
        limit: What limits it, in words.
    """

    tokens: int
    most: int | None = None
    limit: str = ""


def prompt_of(trace: Trace) -> Prompt | None:
    """Return the longest prompt; None: the job passed none to `generate`.

    Raises:
        TraceFileError: The header is damaged.
    """
    said = trace.header.get(PROMPT)
    if said is None:
        return None
    try:
        most = said.get("most")
        return Prompt(int(said["tokens"]), None if most is None else int(most), printable(str(said.get("limit", "")), _LONGEST))
    except (AttributeError, TypeError, KeyError, ValueError) as error:  # a trace may be untrusted
        raise TraceFileError(f"The trace's prompt is damaged ({type(error).__name__}: {error}): record it again.") from None
