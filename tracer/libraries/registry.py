"""All foreign libraries with repairs: the files of this folder, and an `engine.py` in each folder of `engines/`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from vramcast.tracer.libraries.library import Installed, Library, TracedProcess

_FOLDER: Final = Path(__file__).parent
_ENGINES: Final = _FOLDER.with_name("engines")


@functools.cache
def libraries() -> tuple[Library, ...]:
    """Return all libraries, by the names of their modules."""
    files = [f"libraries.{module.name}" for module in pkgutil.iter_modules([str(_FOLDER)])]
    files += [f"engines.{folder.parent.name}.engine" for folder in sorted(_ENGINES.glob("*/engine.py"))]
    modules = [importlib.import_module(f"vramcast.tracer.{name}") for name in files]
    return tuple(module.LIBRARY for module in modules if hasattr(module, "LIBRARY"))


def in_program(process: TracedProcess) -> AbstractContextManager[None]:
    """Return a context with the repairs that precede the program."""
    return _installed(process, [library.in_program for library in libraries()])


def on_card(process: TracedProcess) -> AbstractContextManager[None]:
    """Return a context with the repairs that precede the first touch of the card."""
    return _installed(process, [library.on_card for library in libraries()])


@contextmanager
def _installed(process: TracedProcess, repairs: Sequence[Installed | None]) -> Iterator[None]:
    with ExitStack() as stack:
        for repair in repairs:
            if repair is not None:
                stack.enter_context(repair(process))
        yield
