"""Data of the charts of an evaluation, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from vramcast.core.text import printable
from vramcast.core.units import GIB, MIB
from vramcast.learner.evaluation.metrics import covered, excesses, levels, xmem_errors
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.views.charts.chart import COLOURS, GREY, Axis, Chart, Series

BAND: Final = 0.95  # arbitrary: probability of the band around the nominal coverage
_MAX_FAMILIES: Final = len(COLOURS)  # the rest is "other": no color is used twice
_SPREAD: Final = (0.1, 0.9)  # arbitrary: quantiles that delimit the shaded over-provision


def parity(scored: Sequence[Scored]) -> Chart:
    """Return estimates against measurements; a run whose measurement is only a lower bound is a ring."""
    sizes = [size for run in scored for size in (run.measured_bytes, run.estimated_bytes)] or [GIB]
    axis = _log_axis("measured", min(sizes), max(sizes))
    series = [Series("estimate = measured", "line", (axis.low, axis.high), (axis.low, axis.high))]
    for (name, runs), colour in zip(_families(scored), COLOURS, strict=False):
        exact = [run for run in runs if not run.is_lower_bound]
        series.append(_points(name, exact, colour))
    censored = [run for run in scored if run.is_lower_bound]
    series.append(_points("out of memory or censored: measured is a lower bound", censored, GREY, hollow=True))
    drawn = tuple(one for one in series if len(one.x))
    return Chart("Estimated and measured peak", axis, replace(axis, name="estimated"), drawn)


def coverage(scored: Sequence[Scored]) -> Chart:
    """Return the coverage of the bound at each level, next to the level itself.

    The band holds 95 % of the shares that independent runs with exact levels would give. Runs of one model are not
    independent: with few models, a share outside the band may still be chance.
    """
    known = levels(scored)
    held = {level: covered(scored, level) for level in known}
    judged = [(place, level) for place, level in enumerate(known) if held[level]]
    shares = tuple(sum(held[level]) / len(held[level]) for _, level in judged)
    bands = [binomial_band(len(held[level]), level) for _, level in judged]
    places = tuple(float(place) for place, _ in judged)
    lows, highs = tuple(low for low, _ in bands), tuple(high for _, high in bands)
    low = min([*shares, *lows, *known], default=0.0)
    return Chart(
        "Coverage of the bounds",
        _level_axis(known),
        _share_axis("share of the runs below their bound", max(low - 0.05, 0.0)),
        (
            Series(f"{100 * BAND:g} % of samples with exact levels", "band", places, highs, GREY, lows),
            Series("coverage equal to the level", "line", places, tuple(level for _, level in judged)),
            Series("measured", "points", places, shares, COLOURS[0]),
        ),
    )


def error_distribution(scored: Sequence[Scored]) -> Chart:
    """Return the cumulative distribution of the error by family, for xMem's choice of runs."""
    series = []
    lowest, highest = 1e-4, 1.0  # arbitrary: 0.01 % to 100 %; errors of 0 are at the left end
    for (name, runs), colour in zip([("all", list(scored)), *_families(scored)], (GREY, *COLOURS), strict=False):
        errors = np.sort(np.abs(xmem_errors(runs)))
        if len(errors):
            highest = max(highest, float(errors[-1]))
            shares = np.arange(1, len(errors) + 1) / len(errors)
            x = tuple(max(float(error), lowest) for error in errors)
            series.append(Series(f"{name} ({len(errors)})", "steps", x, tuple(shares.tolist()), colour))
    ticks = tuple((10.0**power, f"{100 * 10.0**power:g} %") for power in range(-4, math.floor(math.log10(highest)) + 1))
    x_axis = Axis("|estimate / measured - 1|", lowest, highest, ticks, is_log=True)
    return Chart("Errors", x_axis, _share_axis("share of runs", 0.0), tuple(series))


def overprovision(scored: Sequence[Scored]) -> Chart:
    """Return the over-provision of the bound at each level: the median, and the middle 80 % of the runs."""
    known = levels(scored)
    found = {place: excesses(scored, level) for place, level in enumerate(known)}
    quantiles = {
        place: np.quantile(values, [_SPREAD[0], 0.5, _SPREAD[1]]).tolist() for place, values in found.items() if values
    }
    places = tuple(float(place) for place in quantiles)
    lows, medians, highs = (tuple(values[i] for values in quantiles.values()) for i in range(3))
    return Chart(
        "Over-provision of the bounds",
        _level_axis(known),
        _percent_axis("bound / measured - 1", min([0.0, *lows]), max([0.01, *highs])),
        (
            Series("middle 80 % of runs", "band", places, highs, COLOURS[0], lows),
            Series("median", "line", places, medians, COLOURS[0]),
            Series("median at each level", "points", places, medians, COLOURS[0]),
        ),
    )


CHARTS: Final[Mapping[str, Callable[[Sequence[Scored]], Chart]]] = {
    "parity": parity,
    "coverage": coverage,
    "errors": error_distribution,
    "overprovision": overprovision,
}


def binomial_band(n: int, share: float) -> tuple[float, float]:
    """Return the ends of the middle `BAND` of the shares that n independent runs with probability `share` would show."""
    from scipy.stats import binom  # takes half a second, which a page without this band saves

    tail = (1 - BAND) / 2
    low, high = binom.ppf([tail, 1 - tail], n, share) / n
    return float(low), float(high)


def _families(scored: Sequence[Scored]) -> list[tuple[str, list[Scored]]]:
    """Return the runs by family, the largest first and the smallest combined as "other"."""
    members: dict[str, list[Scored]] = {}
    for run in scored:
        members.setdefault(run.family, []).append(run)
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    named = [(printable(name) or "no family", runs) for name, runs in ordered]
    if len(named) <= _MAX_FAMILIES:
        return named
    kept, rest = named[: _MAX_FAMILIES - 1], named[_MAX_FAMILIES - 1 :]
    return [*kept, ("other", [run for _, runs in rest for run in runs])]


def _points(name: str, runs: Sequence[Scored], colour: str, *, hollow: bool = False) -> Series:
    x = tuple(float(run.measured_bytes) for run in runs)
    return Series(name, "points", x, tuple(float(run.estimated_bytes) for run in runs), colour, hollow=hollow)


def _log_axis(name: str, low_bytes: int, high_bytes: int) -> Axis:
    """Return a logarithmic axis of bytes with powers of two as ends and ticks, at most seven."""
    first, last = math.floor(math.log2(low_bytes)), math.ceil(math.log2(high_bytes))
    last = max(last, first + 1)
    powers = range(first, last + 1, max(1, math.ceil((last - first) / 6)))
    return Axis(
        name, 2.0**first, 2.0**last, tuple((2.0**power, _size(2**power)) for power in powers if power >= 0), is_log=True
    )


def _size(size_bytes: int) -> str:
    if size_bytes >= GIB:
        return f"{size_bytes // GIB} GiB"
    return f"{size_bytes // MIB} MiB" if size_bytes >= MIB else f"{size_bytes} B"


def _level_axis(known: Sequence[float]) -> Axis:
    """Return an axis with equally spaced levels: a linear scale would squeeze those near 1."""
    return Axis("level", -0.5, max(len(known), 1) - 0.5, tuple((float(i), f"{level:g}") for i, level in enumerate(known)))


def _share_axis(name: str, low: float) -> Axis:
    step = 0.25 if low < 0.3 else 0.1 if low < 0.7 else 0.05
    first = math.floor(low / step)
    ticks = tuple((i * step, f"{i * step:.2f}") for i in range(first, round(1 / step) + 1))
    return Axis(name, first * step, 1.02, ticks)


def _percent_axis(name: str, low: float, high: float) -> Axis:
    power = 10.0 ** math.floor(math.log10(high - low))
    step = next(factor * power for factor in (0.2, 0.5, 1, 2) if (high - low) / (factor * power) <= 6)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = tuple((i * step, f"{100 * i * step:g} %") for i in range(first, last + 1))
    return Axis(name, first * step, last * step, ticks)
