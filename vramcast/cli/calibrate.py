"""Calibrate an artifact on your own runs: the trees stay, the bounds become true here.

vramcast calibrate runs.jsonl --artifact models/default --out models/here

The runs must be new to the artifact. Says how the old bounds did on them, and which contexts changed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from vramcast.cli import learning
from vramcast.errors import DatasetError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    learning.add_runs(parser)
    parser.add_argument("--artifact", required=True, metavar="DIR", help="whose trees stay")
    parser.add_argument("--out", required=True, metavar="DIR", help="the new artifact's folder")


def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    with learning.packages("Calibrating"):
        from vramcast.learner import artifact, cards, drift, training
        from vramcast.lessons import lessons_of
    old = artifact.load(options.artifact)
    lessons = lessons_of(learning.read_all(options.runs), n_jobs=options.jobs)
    if not lessons.examples:
        raise DatasetError("No run can be used: runs need a target, a batch and a measured peak.")
    new = training.recalibrated(old, lessons.examples)
    facts = {"trees from": Path(options.artifact).name, "calibrated on": ", ".join(Path(path).name for path in options.runs)}
    artifact.save(new, options.out, cards.card_text(new, Path(options.out).name, facts))
    found = drift.drift(old, lessons.examples)
    said = {
        "schema": 1,
        "out": options.out,
        "left_out": lessons.left_out,
        "drift": found,
        "contexts": {stack: list(pair) for stack, pair in drift.context_changes(old, new).items()},
    }
    print(json.dumps(said) if options.json else _text(said))
    return 0


def _text(said: dict[str, Any]) -> str:
    lines = [f"left out {count}: {reason}" for reason, count in said["left_out"].items()]
    lines.append("the old bounds on these runs:")
    for family, one in said["drift"].items():
        held = ", ".join(f"{100 * share:.1f} % at {level}" for level, share in one["coverage"].items())
        residual, unlike = 100 * one["median_residual"], 100 * one["unlike"]
        lines.append(
            f"  {family or '(no family)'}: {one['runs']} runs, held {held}; median residual {residual:+.2f} %, "
            f"{unlike:.0f} % unlike what was learned"
        )
    for stack, (before, after) in said["contexts"].items():
        was = "unknown" if before is None else f"{before >> 20} MiB"
        lines.append(f"context of {stack}: {was}, now {after >> 20} MiB")
    return "\n".join([*lines, f"artifact in {said['out']}"])
