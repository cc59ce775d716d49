"""Recorded memory histories of real cards: those for every commit, and those for a release."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

EXPANDABLE = "b5ef67ce"  # prefix of the name of a history with expandable segments and several cards
_LARGE_BYTES = 1_000_000  # arbitrary: larger histories take as long as all smaller ones together


def is_for_release(path: Path) -> bool:
    """Return whether a history is too large for every commit; the one with expandable segments is not."""
    return path.stat().st_size > _LARGE_BYTES and not path.name.startswith(EXPANDABLE)


def parameters(paths: Iterable[Path]) -> list[Any]:
    """Return the histories as parameters of a test."""
    return [pytest.param(path, marks=pytest.mark.release) if is_for_release(path) else path for path in paths]
