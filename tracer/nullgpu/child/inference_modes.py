"""Inference mode as in torch before 2.11, where autocast keeps its casts of weights in it as everywhere else.

Since 2.11 each operator in inference mode casts its weights anew (pytorch#158232). torch's decision is compiled in, but it
keeps the casts in `no_grad`, which makes the same requests. `torch.is_inference_mode_enabled()` is then False.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.replacement import ReplacedAttribute


@contextmanager
def as_no_grad() -> Iterator[None]:
    """Let every inference mode that a job enters be `no_grad`."""
    with ExitStack() as around:
        for owner, name in torch_api.places("inference_mode"):
            around.callback(
                ReplacedAttribute(owner, name, lambda kept: lambda mode: torch.no_grad() if mode else kept(mode)).remove
            )
        yield
