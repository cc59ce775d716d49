"""What is done when a module is imported, at once where it is there: who has no use for it does not pay for the import."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType


class _First:
    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._act()

        vars(spec.loader)["exec_module"] = exec_module
        return spec


@contextmanager
def when_imported(name: str, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` once the module is there, inside.

    Args:
        name: Of the module.
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
