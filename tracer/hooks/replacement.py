"""What stands for another thing while a job runs, and is put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Replaced:
    """An attribute with something else in its place until `remove()`.

    Args:
        owner: Who has it: a module or a class.
        name: Of the attribute.
        wrap: Returns what takes its place, from the original.
    """

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._place = owner, name, getattr(owner, name)
        instead = wrap(self._place[2])
        if not isinstance(self._place[2], type):
            functools.update_wrapper(instead, self._place[2])
        setattr(owner, name, instead)

    def remove(self) -> None:
        """Put the original back."""
        setattr(*self._place)
