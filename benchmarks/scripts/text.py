"""Text of random words, for the stub data of public scripts."""

from __future__ import annotations

import random
import string
from typing import Final

_WORDS: Final = 3000  # arbitrary: distinct words
_LINES: Final = 4000  # arbitrary: lines in the corpus


def words(seed: int = 0) -> list[str]:
    """Return the corpus' words."""
    dice = random.Random(seed)
    return ["".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 9))) for _ in range(_WORDS)]


def lines(count: int = _LINES, *, seed: int = 0) -> list[str]:
    """Return lines of a dozen words."""
    dice, known = random.Random(seed), words()
    return [" ".join(dice.choices(known, k=12)) for _ in range(count)]
