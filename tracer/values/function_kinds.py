"""The kinds of PyTorch's functions, by what the follower of values does with their calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch

from vramcast.tracer.hooks.tensors import LEAVES, TENSORS
from vramcast.tracer.hooks.torch_api import CHECKS_GRADIENTS, OPERATORS, device_constructors
from vramcast.tracer.values import max_shapes, unknown_values

COPIES: Final = frozenset({"cpu", "to", "tolist", "copy_", "type"})
FLOATS: Final = frozenset({"__float__", "item", "tolist"})  # calls that hand floats to the host as Python numbers
# Calls that reveal no values, or have no meaning for a copy.
PASSED: Final = frozenset({
    "__get__", "__set__", "__delete__", "__len__", "__repr__", "__format__", "__hash__", "__reduce_ex__", "__deepcopy__",
    "__dlpack__", "data_ptr", "detach_", "dim", "element_size", "empty", "empty_like", "empty_strided", "get_device",
    "is_complex", "is_contiguous", "is_floating_point", "is_pinned", "is_shared", "ndimension", "nelement", "new_empty",
    "numel", "numpy", "pin_memory", "record_stream", "register_hook", "requires_grad_", "retain_grad", "set_",
    "share_memory_", "size", "storage", "storage_offset", "stride", "untyped_storage",
})  # fmt: skip
# Calls with a plain Python result that is a value from the card.
SCALARS: Final = frozenset({
    "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "equal", "allclose",
    "is_nonzero",
})  # fmt: skip
# Calls that first check whether their matrix is finite; it is assumed to be.
CHECKED: Final = frozenset({"linalg_eig", "linalg_eigvals"})
BACKWARD: Final = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
# Calls whose code reads no tensor, if the first argument is their only one; then those with any tensors as arguments.
_SILENT: Final = frozenset({
    "__getitem__", "argmax", "argmin", "argsort", "bool", "contiguous", "cumsum", "expand", "flatten", "flip", "float", "int",
    "long", "mean", "permute", "prod", "reshape", "sort", "squeeze", "sum", "t", "topk", "transpose", "unsqueeze", "view",
})  # fmt: skip
_SILENT_WITH_MORE: Final = frozenset({
    "__and__", "__eq__", "__ge__", "__gt__", "__invert__", "__le__", "__lt__", "__ne__", "__or__", "__radd__", "__rmul__",
    "__rsub__", "abs", "add", "cat", "clone", "detach", "div", "eq", "ge", "gt", "le", "logical_and", "logical_not",
    "logical_or", "lt", "mul", "ne", "neg", "ones_like", "stack", "sub", "zeros_like",
})  # fmt: skip
_MOVING: Final = frozenset({"cpu", "cuda", "to"})
_MAKING: Final = frozenset({"arange", "full", "ones", "tensor", "zeros"})  # tensors among their arguments are read
_VIEWS: Final = frozenset({"detach", "permute", "squeeze", "t", "transpose", "unsqueeze", "view"})
_BASIC: Final = frozenset({int, slice, type(None), type(Ellipsis)})  # indices with which a row or a part is a view
_AT_LENGTH: Final = CHECKED | {"__deepcopy__", "cuda", CHECKS_GRADIENTS}
_READING: Final = COPIES | SCALARS | max_shapes.READING | {"__setitem__", "_grouped_mm"}
_PLACES: Final = frozenset({str, torch.device})  # they may name the card
PLAIN: Final = LEAVES - _PLACES - TENSORS
# When a call is the function's own, by function (csrc/gate.c): always; with usual arguments; with such ones on the host; and if
# there is no default device.
PASSING: Final[dict[Callable[..., Any], int]] = {}


@dataclass(slots=True)
class FunctionKind:
    """The kind of one function.

    Attributes:
        name: Its name.
        is_passed: Whether it reveals no values.
        is_computing: Whether it is too much work for the host.
        is_derivation: Whether its result is worked out only on request, and its code reads nothing from the card.
        is_constructor: Whether it makes tensors on the default device.
        is_at_length: Whether even calls with usual arguments need a closer look.
    """

    name: str
    is_passed: bool
    is_computing: bool
    is_derivation: bool
    is_constructor: bool
    is_at_length: bool


@functools.cache
def kind_of(func: Callable[..., Any]) -> FunctionKind:
    """Return the kind of a function."""
    name: str = getattr(func, "__name__", "")
    is_operator = type(func).__module__ == OPERATORS
    reads = name in _READING or unknown_values.is_deciding(name, ()) or unknown_values.is_of_finite(name)
    kind = FunctionKind(
        name,
        is_passed=name in PASSED,
        is_computing=unknown_values.is_computing(name),
        is_derivation=not reads,
        is_constructor=func in device_constructors(),
        is_at_length=name in _AT_LENGTH or func in BACKWARD or is_operator or name.startswith("_foreach"),
    )
    if name == "__get__":
        PASSING[func] = 0
    elif not kind.is_at_length:
        PASSING[func] = 1 if kind.is_passed or kind.is_computing else 3 if kind.is_constructor else 2
    return kind


def is_silent(name: str, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> bool:
    """Return whether the code of a call surely reads nothing from the card, and writes to no tensor."""
    is_first = name in _SILENT and len(tensors) == 1 and tensors[0] is args[0]
    return (is_first or name in _SILENT_WITH_MORE) and (not kwargs or PLAIN.issuperset(map(type, kwargs.values())))


@functools.cache
def is_pointwise(name: str) -> bool:
    """Return whether each dimension of a call's result is one of its arguments' dimensions; torch's operators say so."""
    operator: Any = getattr(torch.ops.aten, name.strip("_"), None)
    overloads = operator.overloads() if hasattr(operator, "overloads") else ()
    return any(torch.Tag.pointwise in getattr(operator, overload).tags for overload in overloads)


def is_view(name: str, args: Any) -> bool:
    """Return whether a silent call surely returns a view of its first argument, no larger than that."""
    if name == "__getitem__":
        return type(args[1]) in _BASIC or (type(args[1]) is tuple and _BASIC.issuperset(map(type, args[1])))
    return name in _VIEWS


def reads_nothing(name: str, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> bool:
    """Return whether the operators of a call surely read nothing from the card, but for a copy's own data."""
    if name == "__setitem__":
        return not any(tensor is not args[0] and tensor is not args[2] for tensor in tensors)
    return name in _MOVING or (name in _MAKING and not tensors) or is_silent(name, args, kwargs, tensors)


def usual_tensors(args: Iterable[Any], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
    """Return the tensors among the arguments of a call; None if others than plain ones and numbers are among them.

    No tracked number, subclass of a tensor, or name of a device is then among the arguments.
    """
    found: list[torch.Tensor] = []
    if kwargs:
        if kwargs.get("device") is not None:
            return None
        args = (*args, *[value for value in kwargs.values() if type(value) is not str])
    return found if _are_usual(args, found) else None


def _are_usual(values: Iterable[Any], found: list[torch.Tensor]) -> bool:
    for value in values:
        kind = type(value)
        if kind in TENSORS:
            found.append(value)
        elif kind in PLAIN:
            continue
        elif kind is tuple or kind is list or kind is torch.Size:
            kinds = {*map(type, value)}
            if kinds <= TENSORS:
                found += value
            elif not kinds <= PLAIN and not _are_usual(value, found):
                return False
        elif kind is not slice or not {type(value.start), type(value.stop), type(value.step)} <= PLAIN:
            return False
    return True
