"""A guard that keeps the worker from touching CUDA before it forks: it has no card yet, and its forks would lose CUDA.

The worker imports packages, and some of them query the card while they are imported (torchao, and with it transformers). The
answer is that there is a card: each job has one. Any further query ends the import of the package; the job, which has a card,
imports it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.processes.fork_server import AskedForCard


def hold() -> Callable[[], None]:
    """Keep this process from touching CUDA; return a function that ends this, for a job's own process."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AskedForCard

    replaced = [ReplacedAttribute(torch.cuda, "is_available", lambda _: lambda: True)]
    replaced.append(ReplacedAttribute(torch.cuda, "device_count", lambda _: refused))
    replaced += [ReplacedAttribute(owner, name, lambda _: refused) for owner, name in torch_api.places("lazy_init")]

    def release() -> None:
        for place in replaced:
            place.remove()

    return release
