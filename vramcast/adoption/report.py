"""The report of an adoption: the coverage of bounds on the site's own runs, and the savings of requests based on them.

Tables cover all runs. Charts and the evaluation below them cover the training runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from vramcast.adoption.gate import LEVELS, by_model, coverage
from vramcast.adoption.policies import Costs, costs, dies
from vramcast.core.text import printable
from vramcast.core.units import GIB, gib
from vramcast.learner.evaluation.report import report
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.views.charts.page import ChartTable

_DIED: Final = 25  # arbitrary: rows of the table of jobs that would have died
_GROUPS: Final = 25  # arbitrary: rows of a table by group
_AT: Final = 0.95  # arbitrary: the level whose deaths are listed
_GROUPINGS: Final[Mapping[str, Callable[[Scored], str]]] = {
    "calibrated group": lambda run: run.calibrated_by,
    "card": lambda run: run.gpu,
    "family": lambda run: run.family,
    "optimizer": lambda run: run.optimizer,
    "model": lambda run: run.group,
}


def page(facts: Mapping[str, Any], sample: Sequence[Scored], runs: Sequence[Scored], seconds: Mapping[str, float]) -> str:
    """Return the report as an HTML page.

    Args:
        facts: See `pipeline.adopt`.
        sample: Scored training runs.
        runs: All scored runs.
        seconds: Known durations by id.
    """
    cost = costs(runs, seconds)
    left_out = [*facts["rejected_by_reason"].items(), *facts["left_out"].items()]
    tables = [
        _requests(cost),
        _deaths(runs, seconds),
        *(_groups(runs, seconds, name, group) for name, group in _GROUPINGS.items()),
        ChartTable(
            "Rows and runs left out", ("reason", "rows or runs"), [[printable(why, 120), f"{n:,}"] for why, n in left_out]
        ),
    ]
    verdict = "was deployed" if facts["promoted"] else f"was not deployed: {'; '.join(facts['reasons'])}"
    summary = [
        f"The new artifact {printable(verdict, 1000)}" if not facts["dry_run"] else "Dry run: nothing was deployed",
        f"{facts['runs']:,} runs are in the store, {facts['examples']:,} can be evaluated, {len(sample):,} were learned "
        "from; bounds are those of artifacts that had not seen the run's model",
        *(f"Gap found and corrected: {printable(gap, 1000)}" for gap in facts["gaps"]),
        f"tables down to 'Rows and runs left out' cover all {len(runs):,} runs, the rest covers the {len(sample):,}",
    ]
    return report(sample, title="The site's history", summary=summary, tables=tables)


def cost_facts(runs: Sequence[Scored], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return the cost of each policy, for `adopted.json`."""
    found = costs(runs, seconds)
    shown = ("requested_gib_hours", "again_gib_hours", "deaths")
    return {
        "runs": found.runs,
        "left_out": found.left_out,
        "used_gib_hours": round(found.used_gib_hours, 1),
        "policies": {one.policy: {name: round(getattr(one, name), 1) for name in shown} for one in found.policies},
    }


def _requests(found: Costs) -> ChartTable:
    whole = found.policies[0].requested_gib_hours
    rows = [
        [
            one.policy,
            f"{one.requested_gib_hours:,.0f}",
            f"{one.unused_gib_hours:,.0f}",
            f"{one.deaths:,}",
            f"{one.again_gib_hours:,.0f}",
            f"{100 * (1 - (one.requested_gib_hours + one.again_gib_hours) / whole):.1f} %",
        ]
        for one in found.policies
        if whole  # without a known duration, there is no cost
    ]
    left = "; ".join(f"{n:,} runs are left out: {reason}" for reason, n in found.left_out.items())
    used = f", which used {found.used_gib_hours:,.0f} GiB-hours" if whole else ""
    note = f"{found.runs:,} runs{used}. A job that dies runs again with the whole card. {left}"
    columns = ("request", "GiB-hours requested", "of them unused", "deaths", "GiB-hours of second attempts", "saved")
    return ChartTable("Cost of request policies", columns, rows, note)


def _deaths(runs: Sequence[Scored], seconds: Mapping[str, float]) -> ChartTable:
    exact = [run for run in runs if _AT in run.bounds and not run.is_lower_bound]
    dead = [run for run in exact if dies(run, min(run.bounds[_AT], run.card_bytes or run.bounds[_AT]))]
    longest = sorted(dead, key=lambda run: -seconds.get(run.id, 0.0))[:_DIED]
    rows = [
        [
            printable(run.id, 60),
            printable(run.group, 60),
            gib(run.measured_bytes),
            gib(run.bounds[_AT]),
            f"{seconds[run.id] / 3600:.1f}" if run.id in seconds else "-",
        ]
        for run in longest
    ]
    heading = f"Jobs that would have died with the bound at {_AT:g}: {len(dead):,} of {len(exact):,}, the longest first"
    return ChartTable(heading, ("run", "model", "measured", "bound", "hours"), rows)


def _groups(runs: Sequence[Scored], seconds: Mapping[str, float], name: str, group_of: Callable[[Scored], str]) -> ChartTable:
    """Return the coverage of the bounds by group, and the memory that they request beyond the measured peak."""
    members: dict[str, list[Scored]] = {}
    for run in runs:
        members.setdefault(group_of(run), []).append(run)
    largest = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))[:_GROUPS]
    rows = []
    for group, own in largest:
        models = by_model(own)
        held = coverage(models)
        rows.append(
            [
                printable(group, 60) or "-",
                f"{len(own):,}",
                f"{len(models):,}",
                *(f"{100 * held[key]:.1f} %" if (key := f"{level:g}") in held else "-" for level in LEVELS),
                *(_over(own, seconds, level) for level in LEVELS),
            ]
        )
    columns = (
        *(name, "runs", "models"),
        *(f"below {level:g}" for level in LEVELS),
        *(f"over at {level:g}, GiB-hours" for level in LEVELS),
    )
    note = "Shares are means over models. Over: the bound minus the measured peak, times the job's duration."
    return ChartTable(f"By {name}: the {len(largest)} largest of {len(members):,}", columns, rows, note)


def _over(runs: Sequence[Scored], seconds: Mapping[str, float], level: float) -> str:
    """Return the GiB-hours above the measured peaks of the runs with a duration; "-" if there are none."""
    known = [run for run in runs if level in run.bounds and not run.is_lower_bound and run.id in seconds]
    over = (
        max(min(run.bounds[level], run.card_bytes or run.bounds[level]) - run.measured_bytes, 0) * seconds[run.id] / 3600
        for run in known
    )
    return f"{sum(over) / GIB:,.0f}" if known else "-"
