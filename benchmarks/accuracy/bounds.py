"""Cost and coverage of the shipped bound on models that it has not seen.

    python -m benchmarks.accuracy.bounds [--level 0.99]

Reads build/accuracy/examples-SET.jsonl (`python -m benchmarks.accuracy.examples SET`). Five tables:

1. the permissive sets, cross-validated over models (a script is a model): reserved, by class; each run is evaluated with an
   artifact that was trained and calibrated without its model; PEF by xMem's two rounds;
2. the same for whole sources: each by an artifact of all others, without the built-in rule, which knows xMem's runs; at 0.9, at
   0.95, and at the highest level that the artifact promises, with its mean. *Unlike* is the number of models that the artifact
   does not cover. A peak between two ends is evaluated at each of them;
3. the evaluation-only sets, with the shipped artifact as it is served: process, with the context of the set's own rows;
4. other estimators on the same rows, as their authors published them, and estimates plus 15 %;
5. the number of runs with convolutions for which the cuDNN that measured them can answer.

Groups are models of the set: a split never cuts one.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from benchmarks.accuracy.baselines import MORE
from benchmarks.accuracy.examples import path_of
from benchmarks.accuracy.shipped import permissive, trained
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
from vramcast.learner.model import LearnedModel, Subject
from vramcast.learner.residual_tree import CAUSES
from vramcast.learner.traits import ALONE

ONLY_JUDGE: Final = ("mlp", "cnn", "timm", "real")  # their licenses do not let the artifact learn from them
_LARGE_BYTES: Final = 4 * GIB  # spec: smallest peak for which the process peak's bound is evaluated
FOLDS: Final = 20  # arbitrary: an artifact then loses few models and stays close to the shipped one

_PROMISED: Final = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # arbitrary: levels that an artifact may promise for an unseen source

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
_BY_SOURCE: Final = ("source", "n", "models", "unlike", "0.9 holds", "over", "0.95 holds", "over", "promises", "holds", "over")


def as_served(found: Sequence[Example], learned: LearnedModel) -> Sequence[Example]:
    """Return the runs with what the bounds of an artifact read: traits alone without trees; then training takes seconds."""
    if learned.reads_features:
        return found
    return [replace(one, features={}, traits=dict(Subject.of(one).traits)) for one in found]


def judged(found: Sequence[Example], levels: Sequence[float]) -> list[Scored]:
    """Return the permissive runs, each evaluated once and without its model; runs between two ends could only fail."""
    left_out = {one.id for one in found if one.traits.get("cudnns") == ALONE or one.at_most is not None}
    scored = cross_validation.cross_validated(found, levels=levels, folds=FOLDS)
    return [run for run in scored if run.id not in left_out]


def by_class(found: Sequence[Example], scored: Sequence[Scored], level: float) -> list[list[object]]:
    """Return the rows of all runs, of each set, and of each class."""
    of = {one.id: one for one in found}
    groups: list[tuple[str, list[Scored]]] = [("all", list(scored))]
    groups += [
        (f"set {name}", [one for one in scored if of[one.id].stack == name]) for name in sorted({e.stack for e in found})
    ]
    groups += [(name, [one for one in scored if belongs(of[one.id])]) for name, belongs in CLASSES]
    return [line for name, runs in groups if runs and (line := row(name, runs, level)) is not None]


def source_of(example: Example) -> str:
    """Return the project that published a run: xMem has two sets, and the tabled runs are of several projects."""
    name, project = example.id.split(" ")[:2]
    return {"further": "xmem", "tabled": project}.get(name, name)


def _titled(found: Iterable[Example]) -> dict[str, list[Example]]:
    """Return the runs of a source, and of its classes with convolutions; a peak between two ends is at each of them."""
    groups: dict[str, list[Example]] = {}
    for one in found:
        measured = {"": one.measured_reserved} if one.at_most is None else {
            ", at the lower end": one.measured_reserved, ", at the upper end": one.at_most,
        }  # fmt: skip
        for end, size_bytes in measured.items():
            run = replace(one, measured_reserved=size_bytes, censored=one.censored and one.at_most is None)
            for name in ("", *(f": {name}" for name, belongs in CLASSES[:2] if belongs(one))):
                groups.setdefault(f"{source_of(one)}{name}{end}", []).append(run)
    return groups


def by_source(found: Sequence[Example]) -> Iterator[list[object]]:
    """Yield the rows of each source, as scored by an artifact of all other sources: at two levels, and as it promises."""
    contexts = stacks.learn(found)
    for source in sorted(set(map(source_of, found))):
        learned = trained([one for one in found if source_of(one) != source])
        own = [one for one in found if source_of(one) == source and one.traits.get("cudnns") != ALONE]
        for title, some in _titled(own).items():
            scored = [run for e in some if (run := cross_validation.scored_of(e, learned, _PROMISED, contexts=contexts))]
            models = {run.group for run in scored}
            unlike = {
                e.group for e in some if learned.lacks(e.traits) or learned.is_out_of_distribution(Subject.of(e))
            } & models
            promised = [max(run.promised, default=_PROMISED[0]) for run in scored]
            cells: list[object] = []
            for levels in ([0.9] * len(scored), [0.95] * len(scored), promised):
                asked = [replace(run, bounds={0.95: run.bounds[level]}) for run, level in zip(scored, levels, strict=True)]
                cells += (row(title, asked, 0.95) or ["-"] * 5)[3:5]
            yield [
                title, len(scored), len(models), len(unlike), *cells[:4], f"{100 * np.mean(promised):.0f} %", *cells[4:],
            ]  # fmt: skip


def served(name: str, learned: LearnedModel, levels: Sequence[float]) -> list[Scored]:
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
    learned = load(named(SHIPPED))
    found = as_served(permissive(), learned)
    scored = judged(found, (0.5, 0.9, 0.95, level))
    print(table(list(_COLUMNS), by_class(found, scored, level)) + "\n")
    print(table(list(_BY_SOURCE), by_source(found)) + "\n")
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
