"""What must be known of a program whose values are followed, beside its calls of PyTorch's functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vramcast.tracer.replaced import Replaced
from vramcast.tracer.values import collectives
from vramcast.tracer.values.follow import Values


@contextmanager
def beside(values: Values) -> Iterator[None]:
    """Let what is compiled inside run unseen by `values`, and collectives of one rank give what they were given."""
    compiles = Replaced(torch, "compile", values.unseen_by)
    try:
        with collectives.followed(values.same):
            yield
    finally:
        compiles.remove()
