"""The learned correction on the public measured runs, by cross-validation over models: errors, coverage, over-provision.

    python -m benchmarks.accuracy.learned SET [--report FILE.html] [--jobs 2]      SET: xmem, timm, cnn, mlp

Reads build/accuracy/examples-SET.jsonl, made by `python -m benchmarks.accuracy.examples SET`. Each run is judged by a
correction which was trained and calibrated without its model; the plain simulation with the same contexts stands beside it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from benchmarks.accuracy.examples import SETS, path_of
from benchmarks.accuracy.figures import table
from vramcast.learner import examples, judging, stacks
from vramcast.learner.evaluation import metrics, report
from vramcast.learner.evaluation.scored import Scored

_KEYS = ("mre", "p90", "max", "signed_median", "under_rate", "pef")


def _row(name: str, scored: Sequence[Scored], level: float | None = None) -> list[object]:
    figures = metrics.evaluate(scored, level=level)
    return [name, figures["runs"], *("-" if figures[key] is None else f"{100 * figures[key]:.2f} %" for key in _KEYS)]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--report", metavar="FILE.html")
    parser.add_argument("--parameters", type=json.loads, default={}, metavar="JSON", help="of the learner")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    found, _ = examples.read(path_of(options.set))
    contexts = stacks.learn(found)
    plain = [one for example in found if (one := judging.scored_of(example, None, contexts=contexts)) is not None]
    learned = judging.cross_validated(found, {"n_jobs": options.jobs, **options.parameters})
    rows = [_row("simulated", plain), _row("corrected", learned), _row("bound at 0.99", learned, 0.99)]
    print(table([options.set, "runs", *_KEYS], rows) + "\n")
    figures = metrics.evaluate(learned)
    print(
        table(
            ["level", "holds", "median over"],
            [
                [level, f"{100 * share:.2f} %", f"{100 * figures['overprovision'][level]:.2f} %"]
                for level, share in figures["coverage"].items()
                if share is not None
            ],
        )
    )
    if options.report:
        report.write_report(learned, options.report, title=f"vramcast on {options.set}")


if __name__ == "__main__":
    main()
