"""A case: one hostile input, and the verdict on what came of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Wrong(Enum):
    """What can be wrong about an answer; the value is how the table calls it."""

    NUMBER = "wrong number in silence"
    TRACEBACK = "traceback"
    ORPHAN = "process or folder left behind"
    HANG = "hang"
    EXIT_CODE = "wrong exit code"
    UNCLEAR = "unclear message"
    WALL = "a limit or a wall which did not hold"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a case ended: handled well, or what was wrong about it and what was seen."""

    wrong: Wrong | None = None
    seen: str = ""

    @property
    def is_handled(self) -> bool:
        """Whether nothing was wrong."""
        return self.wrong is None


HANDLED = Verdict()


@dataclass(frozen=True, slots=True)
class Case:
    """One hostile input.

    `run` tries it and returns the verdict. What it raises is a verdict too: an exception of ours at a place where none is due
    is a traceback in the caller's face.
    """

    kind: str
    name: str
    run: Callable[[], Verdict]

    def verdict(self) -> Verdict:
        """Try it; an exception which escapes is a traceback."""
        try:
            return self.run()
        except Exception as error:  # what escapes to a caller of ours is what this benchmark looks for
            last = traceback.format_exception_only(error)[-1].strip()
            return Verdict(Wrong.TRACEBACK, last[:300])
