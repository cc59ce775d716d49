"""What must be known of a program whose values are followed, beside its calls of PyTorch's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vramcast.tracer.hooks.replacement import Replaced
from vramcast.tracer.hooks.torch_api import places
from vramcast.tracer.values import collectives
from vramcast.tracer.values.follower import Values


@contextmanager
def beside(values: Values, others: collectives.Others | None = None) -> Iterator[None]:
    """Let what is compiled inside run unseen by `values`, and let collectives give what like ranks, or `others`, gave them."""
    replaced = [Replaced(torch, "compile", values.unseen_by)]
    replaced += [Replaced(*place, lambda original: _followed_again(original, values)) for place in places("checkpointed")]
    try:
        with collectives.followed(values, others):
            yield
    finally:
        for place in replaced:
            place.remove()


def _followed_again(original: Callable[..., Any], values: Values) -> Callable[..., Any]:
    return lambda forward, *args, **kwargs: original(values.again(forward), *args, **kwargs)
