"""Gives torch the null GPU in each Python that a job starts; it runs there because its folder is first on PYTHONPATH.

A process that never imports torch pays only for this file: vramcast itself is imported with torch. The user's own
sitecustomize, which this one hides, still runs. See tracer/nullgpu/child/observer.py.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # the module `typing` is slow to import, and every Python of a job would pay for it
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class _BeforeTorch:
    """An import hook that runs once, for torch."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._is_asking = False
        self._after: list[Callable[[], None] | None] = []  # what is left to do, once the stand-ins are loaded

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of torch, with the null GPU loaded before it and our other code run after it."""
        if name != "torch" or self._is_asking:
            return None
        import importlib.util

        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return spec
        if not self._after:
            self._after.append(self._before_torch(spec.origin))
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:  # a job may first only look for torch
            sys.meta_path.remove(self)
            execute(module)
            for after in filter(None, self._after):
                after()

        vars(spec.loader)["exec_module"] = exec_module
        return spec

    def _before_torch(self, origin: str | None) -> Callable[[], None] | None:
        with open(os.path.join(self._folder, "root"), encoding="utf-8") as file:
            root = file.read()
        sys.path.insert(0, root)
        try:
            from vramcast.tracer.nullgpu.child import observer
        finally:
            sys.path.remove(root)
        return observer.before_torch(self._folder, origin)


def _run_the_users_own() -> None:
    """Run the sitecustomize that ours hides."""
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if os.path.abspath(entry) != _HERE])
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("VRAMCAST_SUBPROCESSES"):
    sys.meta_path.insert(0, _BeforeTorch(os.environ["VRAMCAST_SUBPROCESSES"]))
_run_the_users_own()
