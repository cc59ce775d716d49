"""The contexts that others measured, by how kernels were loaded, and the rule for cards that have none. MiB."""

from __future__ import annotations

import functools
import statistics
from typing import Final

from vramcast.hardware.card_file import ContextRow, Interval
from vramcast.hardware.cards import DEVICES, built_in
from vramcast.hardware.device import Device

BARE: Final[frozenset[str]] = frozenset()
# Kernels loaded with their library: CUDA 11 and older; and loaded when first used: CUDA 12 and 13.
EAGER: Final = tuple(row for row in built_in().contexts if row.cuda)
LAZY: Final = tuple(row for row in built_in().contexts if not row.cuda)
EAGER_ELSEWHERE: Final = ContextRow(
    gpus=(),
    libraries=BARE,
    # measured: V100 as in cards.toml; low end: 616 MiB with CUDA_MODULE_LOADING=DEFAULT, https://github.com/pytorch/pytorch/pull/86509
    size=Interval(1343, 616, 1679),
    source="other cards with CUDA 11",
    seen=(1343,),
)


def threads_of(row: ContextRow) -> float:
    """Return how many threads a row's card can hold at once, in units of 1024."""
    return kilothreads(DEVICES[row.gpus[0]])


def kilothreads(card: Device) -> float:
    """Return how many threads the card can hold at once, in units of 1024."""
    return card.sm_count * card.threads_per_sm / 1024


@functools.lru_cache(maxsize=512)
def bare_mib(threads_1024: float, rows: tuple[ContextRow, ...] = LAZY) -> float:
    """Return the bare context of a card without a row: as a card with as many threads, else by the rule.

    The rule is a constant and a share for each thread which the card can hold, fitted to the bare rows by least squares of
    relative errors: size / threads is linear in 1 / threads.
    """
    bare = [row for row in rows if row.libraries == BARE]
    alike = [row.size.mib for row in bare if threads_of(row) == threads_1024]
    if alike:
        return statistics.median(alike)
    fitted = statistics.linear_regression(
        [1 / threads_of(row) for row in bare], [row.size.mib / threads_of(row) for row in bare]
    )
    return fitted.slope + fitted.intercept * threads_1024


@functools.lru_cache(maxsize=512)
def kernels_mib(threads_1024: float, rows: tuple[ContextRow, ...] = LAZY) -> float:
    """Return what kernels add to the bare context of a card without a row: as on a card with as many threads, else by the rule.

    The rule is the median of what they add for each thread.
    """
    bare = {row.gpus[0]: row.size.mib for row in rows if row.libraries == BARE}
    after = [row for row in rows if row.libraries != BARE]
    alike = [row for row in after if threads_of(row) == threads_1024]
    shares = [
        (row.size.mib - bare.get(row.gpus[0], bare_mib(threads_of(row), rows))) / threads_of(row) for row in alike or after
    ]
    return statistics.median(shares) * threads_1024
