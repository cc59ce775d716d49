"""Changes of a command's optimizer steps: gradients accumulated over several batches, and gradients dropped, not zeroed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch

from vramcast.tracer.changes.change import Change, Facts, set_arguments
from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.program.variations import step_less


@contextmanager
def accumulated(batches: int, facts: Facts) -> Iterator[None]:
    """Let optimizers step, and drop gradients, once for this number of batches inside.

    Limit: with a GradScaler, gradients are unscaled after each batch, which moves no memory.
    """
    way = f"optimizer.step() and zero_grad() after each {batches} batches, each loss divided by {batches}"

    def made(run: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(optimizer: torch.optim.Optimizer, /, *args: Any, **kwargs: Any) -> None:
            run(optimizer, *args, **kwargs)
            if facts.get("way", way) == way:  # no library does it
                facts["way"] = way
                step_less(optimizer, batches)

        return initialize

    with ExitStack() as stack:
        more: Callable[[Any], int] = lambda own: batches * (own or 1)  # noqa: E731
        names = {"transformers": "gradient_accumulation_steps", "lightning": "accumulate_grad_batches"}
        set_arguments(stack, {library: (name, more) for library, name in names.items()}, facts)
        stack.callback(ReplacedAttribute(torch.optim.Optimizer, "__init__", made).remove)
        yield


@contextmanager
def dropped(is_changed: bool | None, facts: Facts) -> Iterator[None]:
    """Note calls of `zero_grad(set_to_none=False)` inside, and drop the gradients there if it is asked for."""

    def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(owner: Any, set_to_none: bool = True) -> None:
            if not set_to_none:
                facts.update({"value": 0, **({"way": "zero_grad(set_to_none=True)"} if is_changed else {})})
            run(owner, set_to_none=set_to_none or bool(is_changed))

        return zero_grad

    with ExitStack() as stack:
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            stack.callback(ReplacedAttribute(owner, "zero_grad", wrap).remove)
        yield


ACCUMULATED: Final = Change("accumulate", accumulated)
DROPPED: Final = Change("set-to-none", dropped, is_observed=True)
