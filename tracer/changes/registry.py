"""All changes that are applied inside a command's program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from vramcast.tracer.changes import batches, checkpointing, forward_passes, optimizer_steps, optimizers, prompts, settings
from vramcast.tracer.changes.change import Facts

CHANGES: Final = (
    batches.CHANGE, checkpointing.CHANGE, forward_passes.AUTOCAST, forward_passes.OFFLOAD, optimizer_steps.ACCUMULATED,
    optimizer_steps.DROPPED, optimizers.FUSED, optimizers.EIGHT_BITS, prompts.CHANGE, settings.FSDP, settings.LENGTH,
    settings.RANK,
)  # fmt: skip


@contextmanager
def installed(changes: Mapping[str, Any], facts: dict[str, Facts]) -> Iterator[None]:
    """Apply changes inside, and observe what can be changed.

    Args:
        changes: Values of the changes by name.
        facts: Gets the facts of each by name.
    """
    with ExitStack() as stack:
        for change in CHANGES:
            if change.name in changes or change.is_observed:
                stack.enter_context(change.install(changes.get(change.name), facts.setdefault(change.name, {})))
        yield
