"""The swaps of a plan file inside a job: hooks on saved tensors."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

from vramcast.core.errors import TraceFileError
from vramcast.core.plain import from_plain
from vramcast.plans.runtime.plan_file import RankPlan
from vramcast.tracer.protocol.swap_rounds import SavedRound


def swapping(plan: RankPlan) -> AbstractContextManager[object]:
    """Return a context in which saved tensors move to the host as planned; a plan without hooks changes nothing.

    Args:
        plan: The plan of this rank.

    Raises:
        TraceFileError: The schedule of the hooks is damaged.

    Example:
        >>> from vramcast.plans.runtime.plan_file import RankPlan
        >>> with swapping(RankPlan(rank=0, rows=0, blocks={})):
        ...     pass
    """
    hooks = (plan.swap or {}).get("hooks")
    if not hooks:
        return contextlib.nullcontext()
    if not isinstance(hooks, dict):
        raise TraceFileError("The plan's 'swap.hooks' is not an object: make the plan again with `vramcast plan --swap`.")
    rounds = from_plain(tuple[SavedRound, ...], hooks.get("rounds"), "'swap.hooks.rounds' of the plan", raises=TraceFileError)
    from vramcast.tracer.recording.swap_hooks import SwapHooks

    return SwapHooks(rounds).installed()
