"""A case: one hostile input, and the verdict on its result."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Wrong(Enum):
    """Possible faults of an answer; the value is the heading in the table."""

    NUMBER = "wrong number in silence"
    TRACEBACK = "traceback"
    ORPHAN = "process or folder left behind"
    HANG = "hang"
    EXIT_CODE = "wrong exit code"
    UNCLEAR = "unclear message"
    WALL = "a limit or wall that did not hold"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a case: handled well, or the fault and the observation."""

    wrong: Wrong | None = None
    seen: str = ""

    @property
    def is_handled(self) -> bool:
        """Return whether there was no fault."""
        return self.wrong is None


HANDLED = Verdict()


@dataclass(frozen=True, slots=True)
class Case:
    """One hostile input.

    `run` tries it and returns the verdict. An exception is a verdict too: a vramcast exception where none is expected is a
    traceback for the caller.
    """

    kind: str
    name: str
    run: Callable[[], Verdict]

    def verdict(self) -> Verdict:
        """Try it; an escaped exception is a traceback."""
        try:
            return self.run()
        except Exception as error:  # this benchmark looks for exceptions that reach the caller
            last = traceback.format_exception_only(error)[-1].strip()
            return Verdict(Wrong.TRACEBACK, last[:300])
