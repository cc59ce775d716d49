"""Names that a new user may type: the built-in tables' ids, and names of timm and torchvision.

The rule was set before any estimate: all ids of the tables, and of the sorted list of a registry every n-th name such that the
promised number is left. torchvision's names include quantized models, which the program refuses, and rightly so.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from vramcast.jobs import hub
from vramcast.jobs.targets import names_of

PROMISED: Final = {"timm": 200, "torchvision": 80}  # spec: the numbers of names that the front door must answer
_SEED: Final = 36  # arbitrary: any part of a run is a random sample of the names


def groups() -> dict[str, list[str]]:
    """Return the TARGETs of each group."""
    found = {library.scheme: [f"{library.scheme}:{one}" for one in hub.table_ids(library)] for library in _LIBRARIES}
    for registry, count in PROMISED.items():
        names = names_of(registry)
        found[registry] = [f"{registry}:{names[place * len(names) // count]}" for place in range(count)]
    return found


def shuffled(wanted: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield pairs of group and TARGET in an order that depends on no name."""
    pairs = [(group, target) for group, targets in wanted.items() for target in targets]
    random.Random(_SEED).shuffle(pairs)
    yield from pairs


_LIBRARIES: Final = (hub.TRANSFORMERS, hub.DIFFUSERS)
