"""Cost and coverage of the shipped bound on models that it has not seen.

    python -m benchmarks.accuracy.bounds [--level 0.99]

Reads build/accuracy/examples-SET.jsonl (`python -m benchmarks.accuracy.examples SET`). Four tables:

1. the permissive sets, cross-validated over models (a script is a model): reserved, by class; each run is evaluated with an
   artifact that was trained and calibrated without its model; PEF by xMem's two rounds;
2. the evaluation-only sets, with the shipped artifact as it is served: process, with the context of the set's own rows;
3. other estimators on the same rows, as their authors published them, and estimates plus 15 %;
4. the number of runs with convolutions for which the cuDNN that measured them can answer.

Groups are models of the set: a split never cuts one.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.accuracy.baselines import MORE
from benchmarks.accuracy.examples import path_of
from benchmarks.accuracy.shipped import permissive
from benchmarks.accuracy.tools import TOOLS, tool_runs
from benchmarks.tables import table
from vramcast.core.units import GIB
from vramcast.estimates.bounds.learned import SHIPPED, bound_of, load, named
from vramcast.hardware.cards import device
from vramcast.hardware.context import Context
from vramcast.learner import cross_validation, examples, stacks
from vramcast.learner.evaluation import metrics
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.learner.examples import Example
from vramcast.learner.model import Learned, Subject
from vramcast.learner.residual_tree import CAUSES
from vramcast.learner.traits import ALONE

ONLY_JUDGE: Final = ("mlp", "cnn", "timm", "real")  # their licenses do not let the artifact learn from them
_LARGE_BYTES: Final = 4 * GIB  # spec: smallest peak for which the process peak's bound is evaluated
FOLDS: Final = 20  # arbitrary: an artifact then loses few models and stays close to the shipped one

Class = tuple[str, Callable[[Example], bool]]


def _is(trait: str, *values: str) -> Callable[[Example], bool]:
    return lambda example: Subject.of(example).traits.get(trait) in values


def _of_no_cause(example: Example) -> bool:
    traits = Subject.of(example).traits
    return not any(traits.get(trait) == value for trait, value in CAUSES)


CLASSES: Final[tuple[Class, ...]] = (
    ("convolutions in training", lambda example: _is("share", "much")(example) and _is("mode", "training")(example)),
    ("convolutions in inference", lambda example: _is("share", "much")(example) and _is("mode", "inference")(example)),
    ("batches which vary", _is("batches", "vary")),
    ("compiled", _is("compiled", "yes")),
    ("several ranks", _is("ranks", "several")),
    ("no known cause: eager, matmul and attention, one rank, alike batches", _of_no_cause),
    ("torch of another minor release", _is("torch", "other")),
    ("torch of the same minor release", _is("torch", "same")),
)


def row(name: str, runs: Sequence[Scored], level: float) -> list[object] | None:
    """Return a bound's figures: runs, models, coverage, median excess over the measured peak, PEF, largest shortfall."""
    figures = metrics.evaluate(runs, level=level)
    held = figures["coverage"].get(f"{level:g}")
    over = figures["overprovision"].get(f"{level:g}")
    if held is None:
        return None
    short = max((run.measured_bytes / run.bounds[level] - 1 for run in runs if run.bounds), default=0.0)
    cells = [held, over, figures["pef"], max(short, 0.0)]
    return [name, len(runs), len({run.group for run in runs}), *("-" if c is None else f"{100 * c:.1f} %" for c in cells)]


_COLUMNS: Final = ("runs", "n", "models", "holds", "median over", "PEF", "largest shortfall")


def judged(found: Sequence[Example], level: float) -> list[Scored]:
    """Return the permissive runs, each evaluated once and without its model."""
    twice = {one.id for one in found if one.traits.get("cudnns") == ALONE}
    scored = cross_validation.cross_validated(found, levels=(0.5, 0.9, 0.95, level), folds=FOLDS)
    return [run for run in scored if run.id not in twice]


def by_class(found: Sequence[Example], scored: Sequence[Scored], level: float) -> list[list[object]]:
    """Return the rows of all runs, of each set, and of each class."""
    of = {one.id: one for one in found}
    groups: list[tuple[str, list[Scored]]] = [("all", list(scored))]
    groups += [
        (f"set {name}", [one for one in scored if of[one.id].stack == name]) for name in sorted({e.stack for e in found})
    ]
    groups += [(name, [one for one in scored if belongs(of[one.id])]) for name, belongs in CLASSES]
    return [line for name, runs in groups if runs and (line := row(name, runs, level)) is not None]


def served(name: str, learned: Learned, levels: Sequence[float]) -> list[Scored]:
    """Return a set's runs with the default bounds and the context of the set's own rows.

    These are the artifact's bounds; for convolutions without a guarantee, they are no lower than the built-in rule's, and the
    built-in rule alone serves a class outside the artifact. Second rounds are left out: the simulator cannot cap jobs that
    search for plans.
    """
    found, _ = examples.read(path_of(name))
    contexts = stacks.learn(found)
    runs = []
    for one in found:
        run = cross_validation.scored_of(one, None, (), contexts=contexts)
        if run is not None:
            bound, card = bound_of(one, learned), device(one.gpu)
            size_bytes = stacks.context_of(one, contexts) or 0
            known = Context(size_bytes, size_bytes, size_bytes, "measured runs", assumed=False)
            bounds = {level: bound.quantile(level, card, known) for level in levels}
            runs.append(replace(run, bounds=bounds, ran_at=None, died_at=None))
    return runs


def with_margin(runs: Iterable[Scored], level: float, factor: float) -> list[Scored]:
    """Return the runs with the estimate multiplied by a factor in place of a bound."""
    return [replace(run, bounds={level: round(run.estimated_bytes * factor)}) for run in runs]


def by_plans(sets: Mapping[str, Sequence[Example]]) -> list[list[object]]:
    """Return, for each set with convolutions, the runs answered by their own cuDNN and by another version."""
    counts = {
        name: Counter(one.traits["plans"] for one in found if one.traits.get("operators") == "convolution")
        for name, found in sets.items()
    }
    return [[name, *(of[plans] for plans in ("exact", "other"))] for name, of in counts.items() if of]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--level", type=float, default=0.99)
    options = parser.parse_args()
    level: float = options.level
    found = permissive()
    scored = judged(found, level)
    print(table(list(_COLUMNS), by_class(found, scored, level)) + "\n")
    learned = load(named(SHIPPED))
    sets = {name: examples.read(path_of(name))[0] for name in ONLY_JUDGE if path_of(name).exists()}
    sets |= {name: [one for one in found if one.stack == name] for name in sorted({one.stack for one in found})}
    lines: list[list[object]] = []
    for name in ONLY_JUDGE:
        if path_of(name).exists():
            runs = served(name, learned, (level,))
            large = [run for run in runs if run.measured_bytes > _LARGE_BYTES]
            titles = (
                (name, runs),
                (f"{name}, above 4 GiB", large),
                (f"{name}, estimate + 15 %", with_margin(runs, level, MORE)),
            )
            lines += [line for title, some in titles if some and (line := row(title, some, level)) is not None]
    print(table(list(_COLUMNS), lines) + "\n")
    of_xmem = [run for run in scored if run.id.startswith("xmem xmem ")]
    others = [("vramcast, bound", of_xmem), ("vramcast, estimate", with_margin(of_xmem, level, 1.0))]
    others += [("vramcast, estimate + 15 %", with_margin(of_xmem, level, MORE))]
    for title, tool in TOOLS.items():
        runs = tool_runs(tool)
        others += [
            (f"{title}, published", with_margin(runs, level, 1.0)),
            (f"{title}, + 15 %", with_margin(runs, level, MORE)),
        ]
    print(
        table(list(_COLUMNS), [line for title, runs in others if runs and (line := row(title, runs, level)) is not None]) + "\n"
    )
    print(table(["convolutions", "their own cuDNN was asked", "another version"], by_plans(sets)))


if __name__ == "__main__":
    main()
