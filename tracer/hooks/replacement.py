"""Temporary replacement of attributes while a job runs, at once or when their module is imported."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ReplacedAttribute:
    """An attribute with a replacement until `remove()`.

    Args:
        owner: A module or a class.
        name: Name of the attribute.
        wrap: Returns the replacement, given the original.
    """

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._place = owner, name, vars(owner).get(name, original)
        instead = wrap(original)
        if not isinstance(original, type):
            functools.update_wrapper(instead, original)
        setattr(owner, name, staticmethod(instead) if isinstance(self._place[2], staticmethod) else instead)

    def remove(self) -> None:
        """Put the original back."""
        setattr(*self._place)


class _First:
    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act = name, act
        self._is_asking = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:  # not every spec that is found is imported
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            self._act()

        vars(spec.loader)["exec_module"] = exec_module
        return spec


@contextmanager
def when_imported(name: str, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` when the module is imported within the context; jobs that do not use it do not pay for the import.

    Args:
        name: Name of the module.
        act: May import it.
    """
    if name in sys.modules:
        act()
        yield
        return
    hook = _First(name, act)
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        if hook in sys.meta_path:
            sys.meta_path.remove(hook)


def replace_when_imported(
    stack: ExitStack, module: str, name: str, wrap: Callable[[Any], Any], *, if_there: bool = False
) -> None:
    """Replace an attribute of a module, or of a class in it, when the module is imported, until `stack` closes.

    Args:
        stack: Puts the original back.
        module: Name of the module.
        name: `function` or `Class.method`.
        wrap: Returns the replacement, given the original.
        if_there: Whether some releases lack the attribute, which then needs no replacement.
    """
    *classes, attribute = name.split(".")

    def act() -> None:
        owner = functools.reduce(getattr, classes, sys.modules[module])
        if if_there and not hasattr(owner, attribute):
            return
        stack.callback(ReplacedAttribute(owner, attribute, wrap).remove)

    stack.enter_context(when_imported(module, act))
