"""The gain of trees in bounds by their kind of examples and by the number of measured models.

    python -m benchmarks.accuracy.learning_curve [SET] [--models 60,120,...] [--seeds 3] [--write]
    python -m benchmarks.accuracy.learning_curve --search 20     # parameters, by Optuna, on simulated variation alone

SET is `shipped` (the default), or a set of `benchmarks.accuracy.examples`. Each line draws models of the set and prints the
change of the pinball loss at 0.9 and 0.95 against conformal bounds alone (negative is better), always on models held out, with
its bootstrap interval, and the number of models at which the same gain would stand out from chance. Trees learn from measured
runs, from simulated variation (`benchmarks.repeats.variation`), from one after the other, or from both at once. The shipped
set's sources are held out too, one at a time. `--write` stores the table for the shipped artifact's card.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import xgboost

from benchmarks.accuracy.bounds import source_of
from benchmarks.accuracy.examples import SETS, path_of
from benchmarks.accuracy.shipped import CANDIDATES, permissive
from benchmarks.repeats.variation import PATH
from benchmarks.tables import table
from vramcast.learner import examples, gate, stacks, training
from vramcast.learner.conformal import LEVELS, Array
from vramcast.learner.examples import Example
from vramcast.learner.gains import Gain
from vramcast.learner.model import family_name
from vramcast.learner.residual import ResidualQuantiles
from vramcast.learner.search import search
from vramcast.learner.table import ExampleTable, Folds, folds_of, table_of

MEASURED, SIMULATED, REFITTED, TOGETHER = "measured runs", "simulated variation", "the latter, then the former", "both at once"
_WEIGHTS: Final = {MEASURED: (0.0, 1.0), SIMULATED: (1.0, 0.0), REFITTED: (1.0, 0.0), TOGETHER: (1.0, 3.0)}  # arbitrary
_ROUNDS: Final = 30  # arbitrary: a fifth of the trees, learned from measured runs after the others


def network_of(target: str) -> str:
    """Return the name of a network as the shipped runs spell it; that of a generated network has its options."""
    name, _, options = target.partition("?")
    return f"{name}?{options}" if name.startswith("vramcast.") else name.rpartition(":")[2].lower()


def variation() -> ExampleTable:
    """Return the simulated variation."""
    return table_of([replace(one, group=network_of(one.group)) for one in examples.read(PATH)[0]], {})


def fitted(measured: ExampleTable, rows: Any, varied: ExampleTable, others: Any, name: str, seed: int) -> ResidualQuantiles:
    """Return the trees of one candidate, from these rows of both tables."""
    rows = rows[measured.can_teach[rows] & ~measured.censored[rows]]
    of_simulated, of_measured = _WEIGHTS[name]
    weights = np.concatenate([of_simulated * varied.weights[others], of_measured * measured.weights[rows]])
    X = np.concatenate([varied.X[others], measured.X[rows]])[weights > 0]
    y = np.concatenate([varied.y[others], measured.y[rows]])[weights > 0]
    learner = ResidualQuantiles(random_state=seed).fit(X, y, sample_weight=weights[weights > 0])
    if name == REFITTED:
        known = {"objective": "reg:quantileerror", "quantile_alpha": np.asarray(LEVELS), "tree_method": "hist", "nthread": 1}
        data = xgboost.QuantileDMatrix(measured.X[rows], measured.y[rows], weight=measured.weights[rows])
        learner.booster_ = xgboost.train(
            {**known, "max_depth": learner.max_depth, "learning_rate": learner.learning_rate},
            data,
            num_boost_round=_ROUNDS,
            xgb_model=learner.booster_,
        )
    return learner


def sources_of(found: Sequence[Example]) -> Folds:
    """Return (learn, test) rows that hold out one source after the other, with the models that others measured too."""
    sources, models = np.asarray([source_of(one) for one in found]), np.asarray([one.group for one in found])
    new = {source: sources == source for source in sorted(set(sources))}
    return [(np.flatnonzero(~rows & ~np.isin(models, models[rows])), np.flatnonzero(rows)) for rows in new.values()]


def candidates(measured: ExampleTable, varied: ExampleTable, folds: Folds, seed: int = 0) -> Iterator[tuple[str, gate.Losses]]:
    """Yield the losses of bounds of measured runs, by what their trees learned from; a run's own model is always left out."""
    plain = gate.bound_losses(measured, np.zeros((len(measured.y), len(LEVELS))), folds).plain
    for name in _WEIGHTS:
        quantiles: Array = np.zeros((len(measured.y), len(LEVELS)))
        for known, new in folds:
            others = ~np.isin(varied.groups, measured.groups[new])
            learner = fitted(measured, known, varied, others, name, seed)
            quantiles[new] = learner.predict_quantiles(measured.X[new])
        quantiles[~measured.has_features] = 0.0
        yield name, gate.Losses(measured, plain, gate.bound_losses(measured, quantiles, folds).learned)


def drawn(found: Sequence[Example], n_models: int, seed: int) -> list[Example]:
    """Return the runs of a seeded draw of models."""
    models = sorted({one.group for one in found})
    chosen = set(random.Random(seed).sample(models, min(n_models, len(models))))
    return [one for one in found if one.group in chosen]


def needed(gain: Gain) -> str:
    """Return the number of models at which the same gain would leave chance out, since intervals shrink with its root."""
    if gain.change >= 0:
        return "-"
    return f"{math.ceil(gain.models * ((gain.high - gain.change) / -gain.change) ** 2)}"


def lines(found: Sequence[Example], counts: Sequence[int], seeds: int, *, by_source: bool) -> Iterator[list[object]]:
    """Yield the gains of each candidate and family by number of models."""
    varied = variation()
    for n_models, seed in [*((count, seed) for count in counts for seed in range(seeds)), (len({e.group for e in found}), 0)]:
        some = drawn(found, n_models, seed)
        measured = table_of(some, stacks.learn(some))
        yield from _gains([n_models, seed], candidates(measured, varied, folds_of(measured, training.FOLDS, seed), seed), seed)
    if by_source:
        measured = table_of(found, stacks.learn(found))
        yield from _gains(["all, by source", 0], candidates(measured, varied, sources_of(found)))


def _gains(draw: list[object], judged: Iterable[tuple[str, gate.Losses]], seed: int = 0) -> Iterator[list[object]]:
    for name, losses in judged:
        for family, gain in losses.gains(seed=seed).items():
            if gain.models < gate.FEWEST:
                continue
            change, low, high = (f"{100 * value:+.1f}" for value in (gain.change, gain.low, gain.high))
            yield [
                *(*draw, family_name(family), gain.models, name, f"{change} %", f"{low} to {high}"),
                *(needed(gain), "yes" if gain.is_used else "no"),
            ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", nargs="?", default="shipped", choices=("shipped", *SETS))
    parser.add_argument("--models", default="", help="numbers of models; all of them come last")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--search", type=int, default=0, metavar="N", help="only search for parameters, by N trials")
    parser.add_argument("--write", action="store_true", help="store the table for the shipped artifact's card")
    options = parser.parse_args()
    if options.search:
        print(search(variation(), options.search))
        return
    found = permissive() if options.set == "shipped" else examples.read(path_of(options.set))[0]
    counts = [int(count) for count in options.models.split(",") if count]
    columns = ["models drawn", "seed", "family", "models", "trees learn from", "loss", "95 % of samples", "needed", "used"]
    text = table(columns, lines(found, counts, options.seeds, by_source=options.set == "shipped"), "lllr")
    print(text)
    if options.write:
        CANDIDATES.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
