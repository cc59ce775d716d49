"""Contexts measured by others: the table, the accuracy of its rule on unseen cards, and the spread of each class.

python -m benchmarks.hardware.contexts

Prints the table, then: (1) the contexts that nvidia-smi printed in $VRAMCAST_SHARED/data/public/context_startup.csv, next to
the row here; cards.toml lists the parts of that file that are left out. (2) The additional memory of single-rank processes
with a process group. (3) The rule: every row of the table compared with the assumption for its card without it; a card is
left out together with all that hold the same number of threads. The former table, with the same cards left out, is next to
it. (4) The residuals, which are the constants of `vramcast.hardware.context`, and the coverage: the share that stays below
the bound from the other cards.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.accuracy.runner import read_rows
from benchmarks.tables import table
from vramcast.hardware.card_file import ContextRow
from vramcast.hardware.cards import DEVICES
from vramcast.hardware.context import (
    BARE,
    LAZY,
    ContextSource,
    bare_mib,
    kernels_mib,
    kilothreads,
    minor_of,
    quantile,
    threads_of,
)

_MOST_MIB: Final = 5120  # arbitrary: above any context with NCCL in the logs
# Limits relative to the rule's bare context. Bare ones are up to 1.02 of it, after one kernel 1.18, with a process group 1.75.
_ENDS: Final = (("bare", 1.1), ("one kernel", 1.4))  # arbitrary: in the gaps
GROUP: Final = "process group"
_STRANGER: Final = "other ranks' process on GPU 0 (bare context, no NCCL)"
_OWN: Final = ("own process", "own process, rank 0, GPU 0")
_KEYS: Final = {card.name: key for key, card in DEVICES.items()}
# The former table (November 2026): points after all libraries of a row, MiB, and whether they were bare.
_FORMER: Final[Mapping[str, tuple[float, frozenset[str]]]] = {
    "v100-16gb": (380, frozenset({"cublas", "cudnn"})), "t4": (114, frozenset({"cublas", "cudnn"})),
    "a10": (307, frozenset({"cublas", "cudnn"})), "a100-40gb": (524, frozenset({"cublas", "cudnn"})), "l4": (211, BARE),
    "l40s": (505, frozenset({"cublas"})), "h100": (601, frozenset({"cublas", "cudnn"})), "h200": (520, BARE),
    "b200": (712, BARE), "rtx3060": (98, BARE),
    "rtx3090": (354, frozenset({"cublas"})), "rtx4090": (473, frozenset({"cublas", "cudnn"})),
}  # fmt: skip
_FORMER_ADDS: Final = {"cublas": 0.35, "cudnn": 0.05}  # MiB for each 1024 threads
_FEW: Final = 2  # arbitrary: their median is their mean or one of them
_TINY: Final = 1e-9  # arbitrary: floating-point error on a whole number
_LEVELS: Final = (0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Printed:
    """The processes of one stack, most of which have `mib`."""

    key: str
    threads_1024: float
    torch: str
    driver: str
    mib: int
    processes: int
    level: str


def level_of(mib: float, threads_1024: float) -> str:
    """Return the level of a process with one rank, or on another rank's card, by its size: bare, one kernel, process group."""
    return next((name for name, end in _ENDS if mib <= end * bare_mib(threads_1024)), GROUP)


def printed(rows: Iterable[Mapping[str, str]]) -> list[Printed]:
    """Return the data on processes of one rank, and on other ranks' processes on a foreign card."""
    found = []
    for row in rows:
        key = _KEYS.get(row["gpu"])
        is_stranger, ranks = row["what"] == _STRANGER, int(row["ranks"])
        if key is None or not row["torch"] or not ((is_stranger and ranks > 1) or (row["what"] in _OWN and ranks == 1)):
            continue
        mib, count, total = (int(row[name]) for name in ("mode_mib", "mode_count", "total"))
        if mib > _MOST_MIB or 2 * count < total:
            continue
        threads = kilothreads(DEVICES[key])
        level = level_of(mib, threads)
        if not (is_stranger and level == GROUP):  # another job's process
            found.append(Printed(key, threads, row["torch"], row["driver"], mib, count, level))
    return found


def left_out(row: ContextRow) -> tuple[ContextRow, ...]:
    """Return the table without the cards that can hold as many threads as this row's."""
    return tuple(other for other in LAZY if threads_of(other) != threads_of(row))


def without(row: ContextRow) -> float:
    """Return the assumed context for this row's card if neither it nor similar cards had been measured, MiB."""
    rest = left_out(row)
    said = bare_mib(threads_of(row), rest)
    if row.libraries == BARE:
        return said
    own = [other.size.mib for other in LAZY if other.libraries == BARE and other.gpus == row.gpus]
    return (own[0] if own else said) + kernels_mib(threads_of(row), rest)


def former(row: ContextRow) -> float:
    """Return the assumed context by the former rule: the other cards' median per thread, plus the libraries."""
    shares = []
    for key, (mib, libraries) in _FORMER.items():
        threads = kilothreads(DEVICES[key])
        if threads != threads_of(row):
            shares.append(mib / threads - sum(_FORMER_ADDS[library] for library in libraries))
    return (statistics.median(shares) + sum(_FORMER_ADDS[library] for library in row.libraries)) * threads_of(row)


def residuals() -> dict[tuple[ContextSource, bool], list[tuple[str, float]]]:
    """Return measured / assumed - 1 with its card; by class, and by whether kernels had run."""
    found: dict[tuple[ContextSource, bool], list[tuple[str, float]]] = defaultdict(list)
    for row in LAZY:
        card, kernels = row.gpus[0], row.libraries != BARE
        found[ContextSource.INTERPOLATED, kernels] += [(card, size / without(row) - 1) for size in row.seen]
        found[ContextSource.OTHER_STACK, kernels] += [(card, one) for one in of_the_others(row.seen, without(row))]
    stacks: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for one in printed(read_rows("public/context_startup.csv")):
        if one.level != GROUP:
            stacks[one.key, minor_of(one.torch), one.level].append(one.mib)
    for (card, _, _), sizes in stacks.items():
        found[ContextSource.MEASURED, False] += [(card, residual) for residual in of_the_others(sizes)]
    return {key: sorted(values, key=lambda pair: pair[1]) for key, values in found.items()}


def of_the_others(sizes: Sequence[float], rule_mib: float | None = None) -> Iterator[float]:
    """Yield each size relative to the median of the others, less 1; nothing for a single one.

    Args:
        sizes: Sizes of one card.
        rule_mib: The rule's value for the card: it counts as one of the others if they are one or two.
    """
    for i, size in enumerate(sizes):
        rest = [*sizes[:i], *sizes[i + 1 :]]
        if rest:
            help_mib = [rule_mib] if rule_mib is not None and len(rest) <= _FEW else []
            yield size / statistics.median(rest + help_mib) - 1


def coverage(residuals_of: list[tuple[str, float]], level: float) -> float:
    """Return the share of residuals below the bound from the other cards."""
    below = [
        residual <= quantile([other for card, other in residuals_of if card != of], level) for of, residual in residuals_of
    ]
    return sum(below) / len(below)


def main() -> None:
    """Print the tables."""
    print("## The table\n")
    lines = []
    for row in sorted(LAZY, key=lambda row: (threads_of(row), row.gpus[0], row.libraries != BARE)):
        lines.append([
            ", ".join(row.gpus), "kernels" if row.libraries else "bare", f"{row.size.mib:g}",
            f"{row.size.low_mib:g} to {row.size.high_mib:g}", ", ".join(f"{size:g}" for size in row.seen),
            ", ".join(row.torch) or "-", row.source,
        ])  # fmt: skip
    print(table(["card", "level", "MiB", "from, to", "sizes seen", "torch, where known", "source"], lines))
    logs = printed(read_rows("public/context_startup.csv"))
    print("\n## Contexts in public logs\n")
    by_card: dict[tuple[str, str], list[Printed]] = defaultdict(list)
    for one in logs:
        by_card[one.key, one.level].append(one)
    lines = []
    for (key, level), ones in sorted(by_card.items()):
        if level != GROUP:
            sizes = [one.mib for one in ones]
            here, _ = _said(key, ones[0].threads_1024, kernels=level != "bare")
            lines.append([
                key, level, _range(minor_of(one.torch) for one in ones), _range(one.driver.split(".")[0] for one in ones),
                len(ones), sum(one.processes for one in ones), statistics.mode(sizes), f"{min(sizes)} to {max(sizes)}", here,
            ])  # fmt: skip
    print(table(["card", "level", "torch", "drivers", "stacks", "processes", "logged", "range", "row here"], lines))
    print("\n## One rank with a process group: less the bare context, and less the context after kernels\n")
    lines = []
    for (key, level), ones in sorted(by_card.items()):
        for minor in sorted({minor_of(one.torch) for one in ones if level == GROUP}, key=_parts):
            mib = statistics.median(one.mib for one in ones if minor_of(one.torch) == minor)
            (_, bare), (_, after) = (_said(key, ones[0].threads_1024, kernels=kernels) for kernels in (False, True))
            lines.append([key, minor, f"{mib:.0f}", f"{mib - bare:.0f}", f"{mib - after:.0f}"])
    print(table(["card", "torch", "logged", "less bare", "less after kernels"], lines))
    print("\n## The rule for cards without a row, each card judged without it and its like\n")
    lines, errors = [], defaultdict(list)
    for row in LAZY:
        said, before, size = without(row), former(row), row.size.mib
        level = "bare" if row.libraries == BARE else "kernels"
        errors[level].append((abs(size / said - 1), abs(size / before - 1)))
        lines.append([
            row.gpus[0], level, f"{size:g}", f"{said:.0f}", f"{100 * (size / said - 1):+.1f} %", f"{before:.0f}",
            f"{100 * (size / before - 1):+.1f} %",
        ])  # fmt: skip
    print(table(["card", "level", "measured", "said without it", "missed by", "former rule", "missed by"], lines))
    constant, share = 2 * bare_mib(1) - bare_mib(2), bare_mib(2) - bare_mib(1)  # extrapolated to no threads
    print(f"\nbare {constant:.0f} MiB and {share:.2f} for each 1,024 threads; kernels add {kernels_mib(1):.2f} for each")
    for level, pairs in errors.items():
        new, old = ([100 * pair[i] for pair in pairs] for i in (0, 1))
        print(
            f"{level}: {len(pairs)} cards, |error| median {statistics.median(new):.1f} % "
            f"(formerly {statistics.median(old):.1f} %), largest {max(new):.1f} % ({max(old):.1f} %)"
        )
    print("\n## Residuals by class, and the share of left-out rows below the bound\n")
    lines = []
    for (source, kernels), values in sorted(residuals().items(), key=lambda item: (item[0][1], item[0][0].name)):
        level = "kernels" if kernels else "bare"
        shares = [f"{100 * coverage(values, at):.0f} %" for at in _LEVELS]
        print(
            f"{source.name}, {level}: ({', '.join(f'{math.ceil(1000 * value - _TINY) / 1000 + 0:g}' for _, value in values)})"
        )
        cards = len({card for card, _ in values})
        lines.append([source.name, level, len(values), cards, f"{100 * values[-1][1]:+.1f} %", *shares])
    print()
    print(table(["class", "level", "n", "cards", "largest", *(f"below at {level:g}" for level in _LEVELS)], lines))


def _said(key: str, threads_1024: float, *, kernels: bool) -> tuple[str, float]:
    """Return the context of a card, whether or not it is in the table: in words, and in MiB."""
    sizes = [row.size for row in LAZY if key in row.gpus and (row.libraries != BARE) == kernels]
    if sizes:
        return f"{sizes[0].mib:g} ({sizes[0].low_mib:g} to {sizes[0].high_mib:g})", sizes[0].mib
    mib = bare_mib(threads_1024)
    if kernels:
        mib = _said(key, threads_1024, kernels=False)[1] + kernels_mib(threads_1024)
    return f"rule {mib:.0f}", mib


def _range(names: Iterable[str]) -> str:
    """Return the first and the last of a set of versions."""
    ordered = sorted(set(names), key=_parts)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


if __name__ == "__main__":
    main()
