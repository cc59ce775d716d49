"""Evaluate estimates and bounds against measured runs.

    vramcast evaluate runs.jsonl --report report.html
    vramcast evaluate new-runs.jsonl --artifact models/mine

Without an artifact, the correction is evaluated by cross-validation: each run by a correction trained without its model.
With an artifact, the runs must be new to it. The metrics are xMem's (MRE, a median here; PEF; MCP) and those of a bound:
coverage and over-provision.
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
    parser.add_argument("--artifact", metavar="DIR", help="evaluate this artifact, on runs that it was not trained on")
    parser.add_argument(
        "--level", type=values.level, help="compute PEF and MCP from the bound at this level instead of the point estimate"
    )
    parser.add_argument("--report", metavar="FILE.html", help="write a page with tables and charts")
    parser.add_argument("--seed", type=values.count(0), default=0, help="seed of the cross-validation (default: 0)")


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
        with progress("cross-validating by model"):
            scored = cross_validation.cross_validated(
                learned_from.examples, {"n_jobs": options.jobs}, levels=levels, seed=options.seed
            )
    if not scored:
        raise DatasetError(
            "No run can be evaluated: each run needs a target, a batch, a peak, and for a process peak a known context."
        )
    figures = metrics.evaluate(scored, level=options.level)
    if options.report:
        report.write_report(scored, options.report, title="Estimates compared with measured runs")
    judged = ", ".join(f"{count} {way}" for way, count in metrics.ways(scored, options.level).items() if count)
    say(f"vramcast: failures decided by: {judged}")
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
        f"bound at {level:<7} covers {percent(share)}, median over-provision {percent(figures['overprovision'].get(level))}"
        for level, share in figures["coverage"].items()
    ]
    return "\n".join(lines)
