"""Changes that one setting makes: the rank of LoRA adapters (peft), the length of lines (TRL), and sharding (Trainer)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

from vramcast.tracer.changes.change import Change, Facts, set_argument


def _set(library: str, name: str, new: Callable[[Any, Any], Any]) -> Callable[[Any, Facts], AbstractContextManager[None]]:
    """Return a change of one setting; `new` returns its new value, given the program's own and that of the change."""

    @contextmanager
    def installed(value: Any, facts: Facts) -> Iterator[None]:
        def changed(own: Any) -> Any:
            now = None if value is None else new(own, value)
            facts.update({"value": own if type(own) is int else None, **({"now": now} if type(now) is int else {})})
            return now

        with ExitStack() as stack:
            set_argument(stack, library, name, changed, facts)
            yield

    return installed


RANK: Final = Change("lora-rank", _set("peft", "r", lambda own, rank: rank), is_observed=True)
LENGTH: Final = Change("length", _set("transformers", "max_length", lambda own, _: own // 2 if own else None))
FSDP: Final = Change("fsdp", _set("transformers", "fsdp", lambda own, _: None if own else "full_shard auto_wrap"))
