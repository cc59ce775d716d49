"""Train the learned correction on measured runs: yours, ours, or both.

    vramcast train runs.jsonl history.parquet --out models/mine
    vramcast train runs/ --out models/mine --trials 40 --storage sqlite:///search.db

Each run with a job (target and batch) is estimated once, and the estimate is cached; the learner itself takes seconds. Runs
of one model are never split between training and calibration. The same runs and seed give the same artifact.
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from vramcast.cli import learning_options, values
from vramcast.cli.streams import answer_as
from vramcast.cli.terminal import progress
from vramcast.core.errors import DatasetError
from vramcast.core.extras import needed
from vramcast.estimates.bounds.learned import named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    learning_options.add_runs(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the artifact")
    parser.add_argument(
        "--trials",
        type=values.count(0),
        default=0,
        metavar="N",
        help="trials of a search over the learner's parameters (default: 0)",
    )
    parser.add_argument("--storage", metavar="URL", help="storage of the search, for several searchers: sqlite:///search.db")
    parser.add_argument("--seed", type=values.count(0), default=0, help="seed of the folds and the learner (default: 0)")
    parser.add_argument(
        "--folds", type=values.count(2), default=5, help="folds of the cross-validation, split by model (default: 5)"
    )
    parser.add_argument("--against", metavar="DIR", help="report how this older artifact performs on the runs")
    parser.add_argument(
        "--engine", choices=("local", "dask"), default="local", help="where the trees are grown (default: local)"
    )


def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    with needed("Training", "learn"):
        from vramcast.learner import artifact, dask_engine, drift, model_cards, stacks, training
    runs = learning_options.read_all(options.runs)
    older = artifact.load(named(options.against)) if options.against else None  # reported before hours of tracing
    learned_from = learning_options.examples_of(runs, options)
    if not learned_from.examples:
        reasons = ", ".join(f"{count} {reason}" for reason, count in learned_from.left_out.items()) or "the sets are empty"
        raise DatasetError(
            f"None of {len(runs)} runs can be learned from: {reasons}. Each run needs a target, a batch and a peak."
        )
    parameters: dict[str, Any] = {"n_jobs": options.jobs}
    if options.trials:
        from vramcast.learner.search import search
        from vramcast.learner.table import table_of

        table = table_of(learned_from.examples, stacks.learn(learned_from.examples))
        parameters |= search(table, options.trials, seed=options.seed, storage=options.storage, n_jobs=options.jobs)
    with progress("training"), dask_engine.cluster(options.jobs) if options.engine == "dask" else nullcontext():
        learned = training.train(
            learned_from.examples, {**parameters, "engine": options.engine}, folds=options.folds, seed=options.seed
        )
    licences = Counter(run.passport.licence or "the site's own" for run in runs)
    facts = {"sources": ", ".join(Path(path).name for path in options.runs), "licences": ", ".join(sorted(licences))}
    artifact.save(learned, options.out, model_cards.card_text(learned, Path(options.out).name, facts))
    used = {
        "helps": {peak: sorted(head.bounds.families) for peak, head in learned.heads.items()},
        "corrects": {peak: sorted(head.points.families) for peak, head in learned.heads.items()},
    }
    said = {"schema": 1, "out": options.out, "left_out": learned_from.left_out, **used, **learned.card}
    if older is not None:
        changes = {stack: list(pair) for stack, pair in drift.context_changes(older, learned).items()}
        said |= {"drift": drift.drift(older, learned_from.examples), "contexts": changes}
    answer_as(options.json, said, lambda: _text(said))
    return 0


def _text(said: dict[str, Any]) -> str:
    lines = [f"learned from {said['runs']} runs of {said['groups']} models; {said['censored']} peaks are lower bounds"]
    lines += [f"left out {count}: {reason}" for reason, count in said["left_out"].items()]
    for peak, segment, errors in ((peak, *row) for peak, by in said["by"].items() for row in by["segment"].items()):
        plain, corrected = (100 * errors[f"{kind}_median"] for kind in ("simulated", "corrected"))
        shown = f"median error {plain:.2f} % simulated, {corrected:.2f} % corrected ({errors['runs']:.0f} runs)"
        lines.append(f"{peak}, {segment}: {shown}")
    if "drift" in said:
        lines += learning_options.drift_lines(said["drift"], said["contexts"])
    return "\n".join([*lines, f"artifact in {said['out']}"])
