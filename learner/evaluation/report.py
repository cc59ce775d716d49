"""The whole evaluation as one HTML page: metrics, charts, tables by group.

The page loads nothing from the network and runs no script.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vramcast.core.files import atomic_write
from vramcast.core.text import printable
from vramcast.core.units import gib
from vramcast.learner.evaluation.charts import CHARTS, binomial_band
from vramcast.learner.evaluation.factors import Anova, anova, draws, interval
from vramcast.learner.evaluation.metrics import coverage_limits, covered, evaluate, levels, ways
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.views.charts import svg
from vramcast.views.charts.page import ChartTable, render

_TITLE: Final = "Evaluation of estimates and bounds"
_WORST: Final = 12  # arbitrary: rows of the table of under-estimates
_MODELS: Final = 25  # arbitrary: rows of the table of models

_COLUMNS: Final = ("runs", "median", "p90", "max", "signed median", "under", "PEF", "MCP")


def write_report(
    scored: Sequence[Scored], path: str | os.PathLike[str], *, title: str = "Evaluation of estimates and bounds"
) -> None:
    """Write the evaluation of `scored` to `path` as one HTML page.

    Args:
        scored: The runs to evaluate.
        path: The file; it is replaced.
        title: Title of the page.

    Raises:
        OutputError: The file cannot be written.

    Example:
        >>> vramcast.write_report([run], "evaluation.html")
    """
    text = report(scored, title=title)
    with atomic_write(path) as file:
        file.write(text.encode())


def report(
    scored: Sequence[Scored], *, title: str = _TITLE, summary: Sequence[str] = (), tables: Sequence[ChartTable] = ()
) -> str:
    """Return the evaluation of `scored` as an HTML page. Names of models and runs are untrusted, and escaped.

    Args:
        scored: The runs to evaluate.
        title: Title of the page.
        summary, tables: Lines and tables placed before the evaluation's own.
    """
    figures = evaluate(scored)
    by_model = _models(scored)
    worst = sorted(by_model, key=lambda model: -(by_model[model]["mre"] or 0.0))[:_MODELS]
    heading = f"By model: the {len(worst)} of {len(by_model)} with the largest median error"
    own_tables = [
        _levels(scored, figures),
        *(_by(f"By {factor}", factor, groups) for factor, groups in figures["by"].items()),
        _by(heading, "model", {model: by_model[model] for model in worst}),
        _factors(scored),
        _under_estimates(scored),
    ]
    return render(
        "report.html",
        title=printable(title),
        summary=[*summary, *_summary(scored, figures)],
        charts=[svg.draw(chart(scored)) for chart in CHARTS.values()],
        tables=[*tables, *own_tables],
    )


def _models(scored: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    members: dict[str, list[Scored]] = {}
    for run in scored:
        members.setdefault(run.group, []).append(run)
    return {model: evaluate(runs) for model, runs in sorted(members.items())}


def _summary(scored: Sequence[Scored], figures: Mapping[str, Any]) -> list[str]:
    drawn, judged = draws(scored), ways(scored)
    n_lower_bounds = sum(run.is_lower_bound for run in scored)
    died = [run for run in scored if run.ran_out_of_memory]
    foreseen = sum(run.said_out_of_memory for run in died)
    return [
        f"{figures['runs']} runs of {len({run.group for run in scored})} models; the measurement of {n_lower_bounds} is "
        "only a lower bound: they count only if the estimate or bound is below it",
        f"median error {_percent(figures['mre'])}{_between(interval(drawn.mre))}, 90th percentile {_percent(figures['p90'])}, "
        f"largest {_percent(figures['max'])}, signed median {_percent(figures['signed_median'], sign=True)}; "
        f"{_percent(figures['under_rate'])} of the estimates are too low",
        f"estimation failures (PEF) {_percent(figures['pef'])}{_between(interval(drawn.pef))}: decided by the first round "
        f"for {judged['first round']} runs, by a second run for {judged['second run']}, by comparing bytes for "
        f"{judged['inferred']}; {judged['not judged']} undecided",
        f"memory conserved (MCP) {_size(figures['mcp_bytes'])} per run, for runs whose card is known; {foreseen} of "
        f"{len(died)} out-of-memory failures were predicted",
        "errors are estimate / measured - 1; in brackets 95 % intervals from draws of whole models",
    ]


def _levels(scored: Sequence[Scored], figures: Mapping[str, Any]) -> ChartTable:
    rows = []
    for level in levels(scored):
        held = covered(scored, level)
        low, high = binomial_band(len(held), level) if held else (None, None)
        name = f"{level:g}"
        band = f"{_percent(low)} to {_percent(high)}" if held else "-"
        limits = " to ".join(map(_percent, coverage_limits(scored, level) or ()))
        excess = _percent(figures["overprovision"][name], sign=True)
        rows.append([name, str(len(held)), _percent(figures["coverage"][name]), band, limits, excess])
    pinball = f"mean quantile loss (pinball) {_percent(figures['pinball'])} of the measured peak"
    note = (
        f"{pinball}. Independent runs with exact levels would stay in the band in 95 % of samples; runs of one model are "
        "not independent."
    )
    columns = ("level", "runs", "coverage", "band", "if all others failed, or held", "median above the peak")
    return ChartTable("Bounds", columns, rows, note)


def _by(heading: str, name: str, groups: Mapping[str, Mapping[str, Any]]) -> ChartTable:
    """Return a table of metrics; the last columns hold the coverage of each level."""
    known = sorted({level for figures in groups.values() for level in figures["coverage"]}, key=float)
    rows = [
        [
            printable(group, 60) or "-",
            str(figures["runs"]),
            *(_percent(figures[key]) for key in ("mre", "p90", "max")),
            _percent(figures["signed_median"], sign=True),
            *(_percent(figures[key]) for key in ("under_rate", "pef")),
            _size(figures["mcp_bytes"]),
            *(_percent(figures["coverage"].get(level)) for level in known),
        ]
        for group, figures in groups.items()
    ]
    return ChartTable(heading, (name, *_COLUMNS, *(f"below {level}" for level in known)), rows)


def _factors(scored: Sequence[Scored]) -> ChartTable:
    by_error, by_size = anova(scored), anova(scored, of="size")
    rows = [
        [effect.factor, str(effect.degrees), *_explained(by_error, effect.factor), *_explained(by_size, effect.factor)]
        for effect in by_error.effects
    ]
    note = (
        f"{by_error.n} runs. The share of the variance of log(estimate / measured), or of its absolute value, that a factor "
        "explains on top of the others; p: the probability of at least this share by chance."
    )
    columns = ("factor", "degrees", "of the signed error", "p", "of its size", "p")
    return ChartTable("Factors that influence the error", columns, rows, note)


def _explained(found: Anova, factor: str) -> tuple[str, str]:
    (effect,) = [effect for effect in found.effects if effect.factor == factor]
    return _percent(effect.share), "-" if effect.p_value is None else f"{effect.p_value:.3f}"


def _under_estimates(scored: Sequence[Scored]) -> ChartTable:
    below = [run for run in scored if run.estimated_bytes < run.measured_bytes]
    worst = sorted(below, key=lambda run: run.estimated_bytes / run.measured_bytes)[:_WORST]
    rows = [
        [
            printable(run.id, 60),
            ("at least " if run.is_lower_bound else "") + gib(run.measured_bytes),
            gib(run.estimated_bytes),
            _percent(run.estimated_bytes / run.measured_bytes - 1, sign=True),
            ", ".join(f"{level:g}" for level in sorted(run.bounds) if run.bounds[level] >= run.measured_bytes) or "none",
        ]
        for run in worst
    ]
    columns = ("run", "measured", "estimated", "error", "bounds that held")
    return ChartTable(f"The largest of {len(below)} under-estimates", columns, rows)


def _percent(share: float | None, *, sign: bool = False) -> str:
    return "-" if share is None else f"{100 * share:{'+' if sign else ''}.2f} %"


def _between(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f" ({_percent(ends[0])} to {_percent(ends[1])})"


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else gib(size_bytes)
