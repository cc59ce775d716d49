"""What collectives leave in the tensors of a group of one rank: what was there, which the library's own code does not show."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from vramcast.tracer.replaced import Replaced

_IN_PLACE: Final = ("all_reduce", "broadcast", "reduce")
_TO_OUTPUT: Final = ("all_gather_into_tensor", "all_gather", "reduce_scatter_tensor", "all_to_all_single")


@contextmanager
def followed(keep: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call `keep(output, input)` after each collective of a group of one rank which runs inside."""
    distributed: Any = torch.distributed
    if not distributed.is_available():
        yield
        return
    owners = (distributed, distributed.distributed_c10d)
    replaced = [
        Replaced(owner, name, functools.partial(_keeping, source=int(name in _TO_OUTPUT), keep=keep))
        for owner in owners
        for name in (*_IN_PLACE, *_TO_OUTPUT)
    ]
    try:
        yield
    finally:
        for place in replaced:
            place.remove()


def _keeping(original: Callable[..., Any], source: int, keep: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """Return a collective whose first argument then holds what its argument number `source` held."""

    def collective(*args: Any, **kwargs: Any) -> Any:
        done = original(*args, **kwargs)
        if len(args) > source and torch.distributed.get_world_size(kwargs.get("group")) == 1:
            output = args[0][0] if isinstance(args[0], list) else args[0]  # all_gather's, one a rank
            keep(output, args[source])
        return done

    return collective
