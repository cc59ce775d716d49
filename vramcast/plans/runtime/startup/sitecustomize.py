"""Follows a plan in each Python that `vramcast follow` starts; it runs there because its folder is first on PYTHONPATH.

A process that never imports torch pays only for this file. The user's own sitecustomize, which this one hides, still runs.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # the module `typing` is slow to import, and every Python of a job would pay for it
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class _AfterTorch:
    """An import hook that runs once, for torch."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of torch, after which the plan is followed."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _follow()

        vars(spec.loader)["exec_module"] = exec_module
        return spec


def _follow() -> None:
    root, plan = os.environ["VRAMCAST_FOLLOW"].split(os.pathsep, 1)
    sys.path.append(root)
    try:
        from vramcast.plans.runtime.follower import follow_from_start
    finally:
        sys.path.remove(root)
    follow_from_start(plan)


def _run_the_users_own() -> None:
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if os.path.abspath(entry) != _HERE])
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


# Another tool's sitecustomize may run this one again as the user's own.
if not any(type(finder).__name__ == _AfterTorch.__name__ for finder in sys.meta_path):
    if os.environ.get("VRAMCAST_FOLLOW"):
        sys.meta_path.insert(0, _AfterTorch())
    _run_the_users_own()
