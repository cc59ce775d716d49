"""Facts that a trainer reports about its own training, if its method is running: transformers' and Lightning's."""

from __future__ import annotations

import math
from types import FrameType
from typing import Any, Final

_TRANSFORMERS: Final = "transformers.Trainer"
_LIGHTNING: Final = ("lightning.Trainer", "pytorch_lightning.Trainer")


def steps_of(frame: FrameType) -> int | None:
    """Return the number of steps of a trainer's training; None: unknown, or it is none.

    spec: `Trainer.state.max_steps` of transformers 4 and 5; `max_steps`, `estimated_stepping_batches` of Lightning 2.
    """
    trainer, kind = _trainer(frame)
    if kind == _TRANSFORMERS:
        return _positive(getattr(trainer.state, "max_steps", None))
    if kind:
        most = _positive(trainer.max_steps)
        return most or _positive(trainer.estimated_stepping_batches)
    return None


def evaluates(frame: FrameType) -> bool | None:
    """Return whether a trainer evaluates while it trains; None: it is none.

    spec: `Trainer.args.eval_strategy` of transformers (before 4.41 `evaluation_strategy`); `enable_validation` of Lightning 2.
    """
    trainer, kind = _trainer(frame)
    if kind == _TRANSFORMERS:
        strategy = getattr(trainer.args, "eval_strategy", getattr(trainer.args, "evaluation_strategy", "no"))
        return str(getattr(strategy, "value", strategy)) != "no"
    return bool(trainer.enable_validation) if kind else None


def _trainer(frame: FrameType) -> tuple[Any, str]:
    """Return the object whose method is running, and the kind of trainer that it is; "" for any other object."""
    trainer: Any = frame.f_locals.get("self")
    names = {f"{one.__module__.partition('.')[0]}.{one.__name__}" for one in type(trainer).__mro__}
    return trainer, next((name for name in (_TRANSFORMERS, *_LIGHTNING) if name in names), "")


def _positive(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) and value > 0 else None
