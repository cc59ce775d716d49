"""The list of jobs to measure: seeded, without repeats, and independent of how it is cut into shards."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from vramcast.datasets.run import Workload
from vramcast.datasets.workloads.language import draw_hugging_face
from vramcast.datasets.workloads.sampling import Draw
from vramcast.datasets.workloads.synthetic import draw_cnn, draw_mlp, draw_transformer
from vramcast.datasets.workloads.zoo import draw_timm, draw_torchvision

FAMILIES: dict[str, Callable[[Draw], Workload]] = {
    "mlp": draw_mlp,
    "cnn": draw_cnn,
    "transformer": draw_transformer,
    "torchvision": draw_torchvision,
    "timm": draw_timm,
    "hf": draw_hugging_face,
}
# Jobs of each family among twenty in a row. arbitrary: slightly more than half are drawn at random, the others are common
# models.
PROPORTIONS = {"mlp": 3, "cnn": 6, "transformer": 3, "torchvision": 3, "timm": 2, "hf": 3}
_BLOCK = sum(PROPORTIONS.values())
_MEASURED_TWICE, _CAPPED, _EVERY = 3, 7, 10  # arbitrary: two tenths of the list, disjoint


def workloads(seed: int, first: int, count: int) -> list[tuple[str, Workload]]:
    """Return entries `first` to `first + count` of the list that belongs to `seed`, as (id, workload).

    The id is `{seed}-{index}`. Each block of twenty has every family in its fixed proportion, in a random order, so that a
    prefix of the list is as representative as the whole. An entry depends on the seed, its index and, because no two are
    equal, on those before it, but not on the cut, the version of Python, or the installed packages.

    Args:
        seed: Seed of the list.
        first: Index of the first entry.
        count: Number of entries.
    """
    return list(islice(_all(seed, first + count), first, None))


def is_repeated(index: int) -> bool:
    """Return whether this entry is measured twice, which shows the variation of measurements: every tenth."""
    return index % _EVERY == _MEASURED_TWICE


def is_capped(index: int) -> bool:
    """Return whether the smallest card that runs this entry is searched for as well: every tenth."""
    return index % _EVERY == _CAPPED


def _all(seed: int, count: int) -> list[tuple[str, Workload]]:
    entries: list[tuple[str, Workload]] = []
    seen: set[str] = set()
    families: list[str] = []
    for index in range(count):
        if index % _BLOCK == 0:
            block = [family for family, times in PROPORTIONS.items() for _ in range(times)]
            families = Draw(seed, "block", index // _BLOCK).shuffled(block)
        attempt = 0
        while repr(workload := FAMILIES[families[index % _BLOCK]](Draw(seed, index, attempt))) in seen:
            attempt += 1
        seen.add(repr(workload))
        entries.append((f"{seed}-{index}", workload))
    return entries
