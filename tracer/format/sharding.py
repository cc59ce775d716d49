"""Which parameters of a job's ranks are sharded and which are not, module by module, as a trace's header tells it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from vramcast.core.errors import TraceFileError
from vramcast.core.units import gib
from vramcast.tracer.format.trace import SHARDING, Trace

_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank holds of a module's parameters. Sizes in bytes.

    Attributes:
        module: Path up to its first number, `layers.0`, or of what has none the module itself.
        full: All of them.
        sharded: This rank's part of those which are sharded.
        replicated: Those which each rank has whole.
    """

    module: str
    full: int
    sharded: int
    replicated: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"module": self.module, "full": self.full, "sharded": self.sharded, "replicated": self.replicated}


def sharding_of(trace: Trace) -> tuple[Held, ...]:
    """Return what the traced rank holds, in the model's order; nothing where it was not noted.

    Raises:
        TraceFileError: the header is damaged.
    """
    said = trace.header.get(SHARDING)
    if said is None:
        return ()
    try:
        return tuple(Held(str(module), *map(int, sizes)) for module, *sizes in said["modules"])
    except (TypeError, KeyError, ValueError) as error:  # a trace may come from anywhere
        raise TraceFileError(f"The trace's sharding is damaged ({type(error).__name__}: {error}): record it again.") from None


def are_shards_equal(trace: Trace) -> bool:
    """Return whether every rank's shards are known to have the same sizes."""
    said = trace.header.get(SHARDING)
    return isinstance(said, dict) and said.get("is_even") is True


def table(rows: Iterable[Held]) -> Iterator[str]:
    """Yield lines of text: equal modules side by side are one line, `layers.0 to 31`."""
    yield f"{'parameters of':<34} {'full':>12} {'shard here':>12} {'replicated':>12}"
    found = list(rows)
    for _, group in groupby(found, key=lambda one: (_NUMBER.sub("", one.module), one.full, one.sharded, one.replicated)):
        same = list(group)
        name = same[0].module + (f" to {same[-1].module.rpartition('.')[2]}, each" if len(same) > 1 else "")
        yield _line(name, same[0])
    yield _line("all", Held("", *(sum(getattr(one, name) for one in found) for name in ("full", "sharded", "replicated"))))


def _line(name: str, held: Held) -> str:
    return f"{name:<34} {gib(held.full):>12} {gib(held.sharded):>12} {gib(held.replicated):>12}"
