"""Judge estimates and bounds against measured runs.

vramcast evaluate runs.jsonl --report report.html
vramcast evaluate new-runs.jsonl --artifact models/mine

Without an artifact the correction is judged by cross-validation: each run by one which was trained without its model. With one,
the runs must be new to it. The figures are xMem's (MRE is a median, PEF, MCP) and those of a bound: coverage, over-provision.
"""

from __future__ import annotations

import argparse
import json
import sys

from vramcast.cli import learning
from vramcast.correction import named
from vramcast.errors import DatasetError, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    learning.add_runs(parser)
    parser.add_argument("--artifact", metavar="DIR", help="judge this one, on runs which it was not trained on")
    parser.add_argument("--level", type=float, help="PEF and MCP of the bound at this level, not of the estimate")
    parser.add_argument("--report", metavar="FILE.html", help="write one page with tables and charts")
    parser.add_argument("--seed", type=int, default=0)


def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    with learning.packages("Evaluating"):
        from vramcast.learner import artifact, judging
        from vramcast.learner.evaluation import metrics, report
        from vramcast.lessons import lessons_of
    if options.level is not None and not 0 < options.level < 1:
        raise UsageError(f"--level is {options.level}: it must lie between 0 and 1, for example 0.99.")
    levels = sorted({*judging.LEVELS, *([options.level] if options.level else [])})
    lessons = lessons_of(learning.read_all(options.runs), n_jobs=options.jobs)
    for reason, count in lessons.left_out.items():
        print(f"vramcast: left out {count}: {reason}", file=sys.stderr)
    if options.artifact:
        learned = artifact.load(named(options.artifact))
        scored = [one for example in lessons.examples if (one := judging.scored_of(example, learned, levels)) is not None]
    else:
        scored = judging.cross_validated(lessons.examples, {"n_jobs": options.jobs}, levels=levels, seed=options.seed)
    if not scored:
        raise DatasetError("No run can be judged: runs need a target, a batch, a peak, and for a process peak a known context.")
    figures = metrics.evaluate(scored, level=options.level)
    if options.report:
        report.write_report(scored, options.report, title="Estimates against measured runs")
    judged = ", ".join(f"{count} {way}" for way, count in metrics.ways(scored, options.level).items() if count)
    print(f"vramcast: failures judged by: {judged}", file=sys.stderr)
    print(json.dumps(figures) if options.json else _text(figures))
    return 0


def _text(figures: dict[str, object]) -> str:
    def percent(value: object) -> str:
        return f"{100 * value:.2f} %" if isinstance(value, float) else "-"

    signed, under, pef = (percent(figures[name]) for name in ("signed_median", "under_rate", "pef"))
    lines = [
        f"runs             {figures['runs']}",
        f"median error     {percent(figures['mre'])}   90 % below {percent(figures['p90'])}   signed {signed}",
        f"under-estimated  {under}   failures (PEF) {pef}",
    ]
    coverage, over = figures["coverage"], figures["overprovision"]
    assert isinstance(coverage, dict)
    assert isinstance(over, dict)
    lines += [
        f"bound at {level:<7} holds for {percent(share)}, median over {percent(over.get(level))}"
        for level, share in coverage.items()
    ]
    return "\n".join(lines)
