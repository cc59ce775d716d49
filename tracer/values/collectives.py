"""What collectives leave in small tensors, which the library's own code does not show.

Alone in its group a rank gets what it gave. Of several ranks the others are absent, and each gives what this one gives (single
program, multiple data); what the ranks exchange as whole numbers (tokens for experts) is given evenly to all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.tracer.replaced import Replaced
from vramcast.tracer.values.recipes import Origin

if TYPE_CHECKING:
    from vramcast.tracer.values.follow import Values

_IN_PLACE: Final = ("all_reduce", "broadcast", "reduce")
_TO_OUTPUT: Final = ("all_gather_into_tensor", "all_gather", "reduce_scatter_tensor", "all_to_all_single")
_OPERATION_AT: Final = {"all_reduce": 1, "reduce": 2, "reduce_scatter_tensor": 2}  # spec: torch.distributed's signatures


@contextmanager
def followed(values: Values) -> Iterator[None]:
    """Tell `values` what the tensors hold after each collective which runs inside."""
    distributed: Any = torch.distributed
    if not distributed.is_available():
        yield
        return
    owners = (distributed, distributed.distributed_c10d)
    replaced = [
        Replaced(owner, name, functools.partial(_told, name=name, values=values))
        for owner in owners
        for name in (*_IN_PLACE, *_TO_OUTPUT)
    ]
    try:
        yield
    finally:
        for place in replaced:
            place.remove()


def _told(original: Callable[..., Any], name: str, values: Values) -> Callable[..., Any]:
    """Return a collective after which it is known what its first argument holds."""
    source = int(name in _TO_OUTPUT)

    def collective(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= source:
            return original(*args, **kwargs)
        group = kwargs.get("group")
        size, place = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
        if size == 1:
            done = original(*args, **kwargs)
            values.same(args[0][0] if isinstance(args[0], list) else args[0], args[source])
            return done
        given = _given(values, name, args[source])
        held = None if given is None else given[0].clone()
        done = original(*args, **kwargs)
        if given is None or held is None or place < 0:
            return done
        at = _OPERATION_AT.get(name)
        operation = kwargs.get("op", args[at] if at is not None and len(args) > at else torch.distributed.ReduceOp.SUM)
        is_uneven = name == "all_to_all_single" and any(splits is not None for splits in (*args[2:4], *_splits(kwargs)))
        result = (
            None
            if is_uneven or (name == "broadcast" and not _is_source(args, kwargs))
            else (result_of(name, held, size, place, operation))
        )
        if result is not None:
            for output in args[0] if isinstance(args[0], list) else [args[0]]:
                values.holds(output, result, max(given[1], Origin.DRAWN))  # nobody saw the others
        return done

    return collective


def _given(values: Values, name: str, tensor: Any) -> tuple[torch.Tensor, Origin] | None:
    """Return what this rank gives, and where that comes from; whole numbers are worked out, which shapes may depend on."""
    if not isinstance(tensor, torch.Tensor):
        return None
    found = values.value(tensor)
    return found if found is not None or tensor.is_floating_point() else values.guess(name, tensor)


def result_of(name: str, given: torch.Tensor, size: int, place: int, operation: Any) -> torch.Tensor | None:
    """Return what a rank holds after a collective where every rank gave the same.

    Args:
        name: Of the collective.
        given: What this rank gave, [...].
        size: Ranks of the group.
        place: Of this rank among them.
        operation: Of a reduction.
    Returns:
        None: that is not known.
    """
    if name in _OPERATION_AT:
        if name == "reduce_scatter_tensor":
            given = given.reshape(size, -1)[place]
        return _reduced(given, size, operation)
    if name == "all_gather_into_tensor":
        return torch.cat([given.reshape(-1)] * size)
    if name == "all_to_all_single":
        parts = given.reshape(size, -1)
        even = parts[place] if parts.is_floating_point() else (parts.double().mean(0) + 0.5).floor().to(parts.dtype)
        return torch.cat([even] * size)
    return given  # broadcast by this rank; all_gather's list


def _reduced(given: torch.Tensor, size: int, operation: Any) -> torch.Tensor | None:
    operations = torch.distributed.ReduceOp
    if operation == operations.SUM:
        return given * size
    if operation in (operations.AVG, operations.MIN, operations.MAX, operations.BAND, operations.BOR):
        return given
    return None


def _is_source(args: Any, kwargs: Any) -> bool:
    """Return whether a broadcast is this rank's own."""
    source = kwargs.get("src", args[1] if len(args) > 1 else None)
    if source is not None:
        return bool(source == torch.distributed.get_rank())
    return bool(kwargs.get("group_src") == torch.distributed.get_rank(kwargs.get("group")))


def _splits(kwargs: Any) -> tuple[Any, Any]:
    return kwargs.get("output_split_sizes"), kwargs.get("input_split_sizes")
