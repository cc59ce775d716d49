"""Judge estimates and bounds against measured runs.

vramcast evaluate runs.jsonl --report report.html
vramcast evaluate new-runs.jsonl --artifact models/mine

Without an artifact the correction is judged by cross-validation: each run by one which was trained without its model. With one,
the runs must be new to it. The figures are xMem's (MRE is a median, PEF, MCP) and those of a bound: coverage, over-provision.
"""

from __future__ import annotations

import argparse
from typing import Any

from vramcast.cli import learning_options, values
from vramcast.cli.streams import answer_as, say
from vramcast.cli.terminal import progress
from vramcast.core.errors import DatasetError
from vramcast.core.extras import needed
from vramcast.estimates.bounds.learned import named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    learning_options.add_runs(parser)
    parser.add_argument("--artifact", metavar="DIR", help="judge this one, on runs which it was not trained on")
    parser.add_argument("--level", type=values.level, help="PEF and MCP of the bound at this level, not of the estimate")
    parser.add_argument("--report", metavar="FILE.html", help="write one page with tables and charts")
    parser.add_argument("--seed", type=values.count(0), default=0)


def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    with needed("Evaluating", "learn"):
        from vramcast.learner import artifact, cross_validation
        from vramcast.learner.evaluation import metrics, report
    levels = sorted({*cross_validation.LEVELS, *([options.level] if options.level else [])})
    runs = learning_options.read_all(options.runs)
    learned_from = learning_options.examples_of(runs, options)
    for reason, count in learned_from.left_out.items():
        say(f"vramcast: left out {count}: {reason}")
    if options.artifact:
        learned = artifact.load(named(options.artifact))
        scored = [
            one
            for example in learned_from.examples
            if (one := cross_validation.scored_of(example, learned, levels)) is not None
        ]
    else:
        with progress("judging, each model by what the others taught"):
            scored = cross_validation.cross_validated(
                learned_from.examples, {"n_jobs": options.jobs}, levels=levels, seed=options.seed
            )
    if not scored:
        raise DatasetError("No run can be judged: runs need a target, a batch, a peak, and for a process peak a known context.")
    figures = metrics.evaluate(scored, level=options.level)
    if options.report:
        report.write_report(scored, options.report, title="Estimates against measured runs")
    judged = ", ".join(f"{count} {way}" for way, count in metrics.ways(scored, options.level).items() if count)
    say(f"vramcast: failures judged by: {judged}")
    answer_as(options.json, figures, lambda: _text(figures))
    return 0


def _text(figures: dict[str, Any]) -> str:
    def percent(value: object) -> str:
        return f"{100 * value:.2f} %" if isinstance(value, float) else "-"

    signed, under, pef = (percent(figures[name]) for name in ("signed_median", "under_rate", "pef"))
    lines = [
        f"runs             {figures['runs']}",
        f"median error     {percent(figures['mre'])}   90 % below {percent(figures['p90'])}   signed {signed}",
        f"under-estimated  {under}   failures (PEF) {pef}",
    ]
    lines += [
        f"bound at {level:<7} holds for {percent(share)}, median over {percent(figures['overprovision'].get(level))}"
        for level, share in figures["coverage"].items()
    ]
    return "\n".join(lines)
