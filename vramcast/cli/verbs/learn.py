"""Learn from your cluster's history, and deploy the result if it is no worse than the current artifact.

    vramcast learn jobs.csv --out models/site
    vramcast learn sacct-*.txt --join rules.json --out models/site --json
    vramcast learn jobs.csv --calibrate-only --out models/site
    vramcast estimate torchvision:resnet50 --batch-size 32 --artifact models/site

The second line can run every night: known jobs are not read or traced again. The third keeps the trees of the shipped
artifact, or of --against, and calibrates their bounds on the history.

HISTORY is a file in any format of --from, or a set of runs. DIR gets the artifact, and DIR/adopted the runs, the
estimates, report.html and adopted.json (docs/adopting.md). The new artifact is compared with the current one and with the
shipped one; --keep says which to keep. Exit code 0: deployed, or nothing is new; 1: the new artifact is rejected, and the
current one stays; 3: another process adopts into DIR, or it cannot be written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields

from vramcast.cli import adoption_text, column_questions, learning_options, values
from vramcast.cli.streams import answer_as, say
from vramcast.cli.terminal import is_interactive
from vramcast.core.errors import UsageError, VramcastError
from vramcast.core.extras import needed
from vramcast.datasets.histories.column_names import parsed
from vramcast.datasets.histories.format_detection import format_of
from vramcast.datasets.histories.formats import FORMATS
from vramcast.estimates.bounds.learned import named

_REFUSED = 1  # spec: the contract's exit code for no


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    parser.add_argument("files", nargs="+", metavar="HISTORY", help="a file of the scheduler or the monitor, or a set of runs")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the artifact")
    parser.add_argument(
        "--from",
        "--format",
        dest="format_name",
        choices=tuple(FORMATS),
        metavar="FORMAT",
        help=f"format of all files: {', '.join(FORMATS)} (default: detected from their beginning)",
    )
    parser.add_argument("--join", dest="rules", metavar="RULES.json", help="rules that map a job's script or name to a model")
    column_questions.add_option(parser)
    learning_options.add_how(parser)
    parser.add_argument(
        "--engine", choices=("local", "dask"), default="local", help="where jobs are estimated and trees grown (default: local)"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="address of a dask cluster; without it, --jobs processes on this machine"
    )
    parser.add_argument("--seed", type=values.count(0), default=0, help="seed of the folds and the learner (default: 0)")
    parser.add_argument(
        "--folds", type=values.count(2), default=5, help="folds of the cross-validation, split by model (default: 5)"
    )
    parser.add_argument(
        "--learn-from", dest="most", type=values.count(0), default=4000, metavar="N",
        help="learn from at most N runs, some of each job; 0: all (default: 4000). All runs are evaluated",
    )  # fmt: skip
    parser.add_argument("--against", metavar="DIR", help="compare with this artifact too, in addition to the one in --out")
    parser.add_argument(
        "--keep",
        choices=("better", "new", "old"),
        default="better",
        help="which artifact to keep: the new one unless the current or the shipped one is better on the jobs held out "
        "(better; a terminal asks), the new one even if it is worse, but never if it is damaged (new), or the old one (old)",
    )
    parser.add_argument("--replace", dest="keep", action="store_const", const="new", help="the same as --keep new")
    parser.add_argument("--calibrate-only", action="store_true", help="keep the trees of the shipped artifact, or of --against")
    parser.add_argument("--dry-run", action="store_true", help="report what would be done; only the estimates are kept")


def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    with needed("Learning from a history", "learn"):
        from vramcast.adoption import pipeline
    if options.scheduler and options.engine != "dask":
        raise UsageError("--scheduler requires --engine dask: add it, or leave out --scheduler.")
    asked = {one.name: getattr(options, one.name) for one in fields(pipeline.AdoptOptions)}
    columns = parsed(options.columns) if options.columns else _answered(options.files, options.format_name)
    against = str(named(options.against)) if options.against else None
    wanted = pipeline.AdoptOptions(**{**asked, "files": tuple(options.files), "columns": columns, "against": against})
    asks = is_interactive() and not options.json
    is_quiet = options.progress == "quiet"
    facts = pipeline.adopt(wanted, (lambda line: None) if is_quiet else _tell, adoption_text.wants_new if asks else None)
    answer_as(options.json, facts, lambda: adoption_text.answer(facts))
    return _REFUSED if facts["reasons"] and not facts["nothing_new"] else 0


def _tell(line: str) -> None:
    say(f"vramcast: {line}")


def _answered(files: Sequence[str], format_name: str | None) -> dict[str, str]:
    """Return a person's choice of columns for the first table that needs one; all tables are read with it."""
    for file in files:
        with suppress(VramcastError):  # the adoption itself reports it
            if (format_name or format_of(file)) == "csv" and (columns := column_questions.answered(file)):
                return columns
    return {}
