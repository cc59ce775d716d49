"""Calibrate an artifact on your own runs: recompute its bounds and keep its trees.

    vramcast calibrate runs.jsonl --artifact models/default --out models/here
    vramcast calibrate runs.jsonl more.parquet --artifact models/site --out models/here --jobs 4 --json

The runs must be new to the artifact. Prints the coverage of the old bounds on them, and the contexts that changed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vramcast.cli import learning_options
from vramcast.cli.streams import answer_as
from vramcast.cli.terminal import progress
from vramcast.core.errors import DatasetError
from vramcast.core.extras import needed
from vramcast.estimates.bounds.learned import named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    learning_options.add_runs(parser)
    parser.add_argument("--artifact", required=True, metavar="DIR", help="the artifact to calibrate")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the new artifact")


def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    with needed("Calibrating", "learn"):
        from vramcast.learner import artifact, drift, model_cards, training
    old = artifact.load(named(options.artifact))
    runs = learning_options.read_all(options.runs)
    learned_from = learning_options.examples_of(runs, options)
    if not learned_from.examples:
        raise DatasetError("No run can be used: each run needs a target, a batch and a measured peak.")
    with progress("calibrating"):
        new = training.recalibrated(old, learned_from.examples)
    facts = {"trees from": Path(options.artifact).name, "calibrated on": ", ".join(Path(path).name for path in options.runs)}
    artifact.save(new, options.out, model_cards.card_text(new, Path(options.out).name, facts))
    said = {
        "schema": 1,
        "out": options.out,
        "left_out": learned_from.left_out,
        "drift": drift.drift(old, learned_from.examples),
        "contexts": {stack: list(pair) for stack, pair in drift.context_changes(old, new).items()},
    }
    answer_as(options.json, said, lambda: _text(said))
    return 0


def _text(said: dict[str, Any]) -> str:
    lines = [f"left out {count}: {reason}" for reason, count in said["left_out"].items()]
    lines += learning_options.drift_lines(said["drift"], said["contexts"])
    return "\n".join([*lines, f"artifact in {said['out']}"])
