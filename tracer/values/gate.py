"""The gate in front of the follower of values: C code that makes most calls without it (csrc/gate.c)."""

from __future__ import annotations

import ctypes
import functools
import sysconfig
from pathlib import Path
from typing import Any, Final

import torch

from vramcast.core.compiler import shared_library
from vramcast.core.errors import VramcastError
from vramcast.tracer.hooks.tensors import TENSORS
from vramcast.tracer.hooks.torch_api import default_device
from vramcast.tracer.values.function_kinds import PASSING, PLAIN

SOURCE: Final = Path(__file__).with_name("csrc") / "gate.c"
OPTIONS: Final = ("-isystem", sysconfig.get_path("include"))
_TYPES: Final = dict.fromkeys(PLAIN, 0) | dict.fromkeys(TENSORS, 1) | dict.fromkeys((tuple, list, torch.Size), 2) | {slice: 3}


@functools.cache
def load() -> Any:
    """Return the library's function, once in a process and before it forks; None: the follower sees all calls.

    There may be no compiler, or no headers of Python.
    """
    try:
        gate: Any = ctypes.PyDLL(str(shared_library(SOURCE, options=OPTIONS))).gate
    except (OSError, VramcastError):
        return None
    gate.restype, gate.argtypes = ctypes.py_object, [ctypes.py_object] * 4 + [ctypes.c_ssize_t]
    return gate


def before(mode: Any, hollow_bytes: int = 0) -> dict[str, Any]:
    """Return the attributes of a mode with its `__torch_function__` behind the gate; none without a library.

    Args:
        mode: The mode.
        hollow_bytes: The size from which a host tensor, or the one that it is a view of, does not pass; 0: each one does.
    """
    gate = load()
    return {} if gate is None else {"__torch_function__": gate(mode, PASSING, _TYPES, default_device, hollow_bytes)}
