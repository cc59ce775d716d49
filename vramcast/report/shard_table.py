"""What a rank holds of each module's parameters, as lines of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from vramcast.core.units import gib
from vramcast.tracer.format.sharding import Held

_NUMBER: Final = re.compile(r"\d+")


def shard_table(rows: Iterable[Held]) -> Iterator[str]:
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
