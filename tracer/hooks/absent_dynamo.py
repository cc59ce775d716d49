"""A stand-in for torch's compiler front end until a job wants something of it: most jobs compile nothing.

Its import takes about as long as torch's own. PyTorch imports it for every optimizer and dispatch mode, to mark functions
that are not compiled and to break graphs. The stand-in does both, and imports the module for anything else. A function
that `torch.compile` decorates is compiled when it is called: bitsandbytes decorates some, and few jobs call them.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from vramcast.tracer.hooks.torch_api import DYNAMO, DYNAMO_ANSWER, DYNAMO_DISABLED, DYNAMO_INLINED

_ATTRIBUTE: Final = DYNAMO.rpartition(".")[2]
_UTILS: Final = f"{DYNAMO}.utils"  # torchvision takes a function out of it


class _StandIn(ModuleType):
    """A module of some functions; a user of another attribute gets the module itself."""

    def __init__(self, name: str, **functions: Any) -> None:
        super().__init__(name)
        vars(self).update(functions)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system's, and those of tools that look at all modules
            raise AttributeError(name)
        _imported()
        return getattr(sys.modules[self.__name__], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_imported(), name, value)


def _disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
    """Return `fn`, or after an import of the module, the function that it makes of it."""
    if isinstance(fn, FunctionType) and recursive:
        return _not_compiled(fn, options)
    return _imported().disable(fn, recursive, **options)


class _Parts(MetaPathFinder):
    """An import hook: the importer of a part of the module wants the module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a part that the module's import has loaded; None: it is loaded as usual."""
        if not name.startswith(f"{DYNAMO}.") or _imported() is None or name not in sys.modules:
            return None
        return ModuleSpec(name, _Loaded(sys.modules[name]))


class _Loaded(Loader):
    """A loader of a loaded module."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec, which the import system has replaced."""
        module.__spec__ = self._spec


_parts: Final = _Parts()
_answered: Final[list[Any]] = []  # functions for which PyTorch keeps our answer


def stand_in() -> None:
    """Put the stand-in in the module's place, unless that is imported; call it before a job runs."""
    import torch

    if DYNAMO in sys.modules:
        return
    path = [str(Path(torch.__file__).with_name(_ATTRIBUTE))]
    place = _StandIn(DYNAMO, __path__=path, graph_break=lambda msg="": None, disable=_disable)  # nothing is compiled: no graphs
    sys.modules[DYNAMO] = vars(torch)[_ATTRIBUTE] = place
    sys.modules[_UTILS] = _StandIn(_UTILS, is_compile_supported=lambda kind: _imported().utils.is_compile_supported(kind))
    sys.meta_path.insert(0, _parts)
    vars(torch)["compile"] = _when_called(torch.compile)


def _imported() -> Any:
    """Return the module, imported now if it is not yet."""
    import torch

    if isinstance(sys.modules.get(DYNAMO), _StandIn):
        sys.meta_path.remove(_parts)
        del sys.modules[DYNAMO], sys.modules[_UTILS], vars(torch)[_ATTRIBUTE]
        importlib.import_module(DYNAMO)
        for function in _answered:
            vars(function).pop(DYNAMO_ANSWER, None)
    return importlib.import_module(DYNAMO)


def _when_called(compile_: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `torch.compile` that waits with a function until it is called, unless the module is imported."""

    @functools.wraps(compile_)
    def compile_later(model: Any = None, **options: Any) -> Any:
        if not isinstance(model, FunctionType) or not isinstance(sys.modules.get(DYNAMO), _StandIn):
            return compile_(model, **options)
        compiled: list[Callable[..., Any]] = []

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not compiled:
                compiled.append(compile_(model, **options))
            return compiled[0](*args, **kwargs)

        vars(call)[DYNAMO_INLINED] = model
        return call

    return compile_later


def _not_compiled(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    disabled: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not disabled:
            if isinstance(sys.modules.get(DYNAMO), _StandIn):
                return function(*args, **kwargs)
            disabled.append(_imported().disable(function, **options))
        return disabled[0](*args, **kwargs)

    _answered.append(function)
    vars(call)[DYNAMO_DISABLED] = True
    return call
