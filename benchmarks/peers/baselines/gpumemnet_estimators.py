"""GPUMemNet's two estimators, reimplemented, on its own data, and our estimate on the same rows: accuracy of the memory class.

    python -m benchmarks.peers.baselines.gpumemnet_estimators [--set mlp|cnn|transformer] [--kind mlp] [--seed 0] [--carried]

As published: KFold(3, shuffled, seed 42); in each held-out fold, the first 70 % test and the rest stops the training. Classes
are 1000 MiB wide for MLPs (step 2, with norms and dropout), 8000 for the others; a run out of memory is in the last class.
Unlike the published code, every fold starts with a new network. `--carried` keeps the same network, as the published code does:
folds 2 and 3 then test rows that were learned from. Our estimate is the simulated process peak with the assumed context of each
example that `python -m benchmarks.accuracy.examples SET` has stored so far; it learns nothing from the rows.
"""

from __future__ import annotations

import argparse
import ast
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold

from benchmarks.accuracy.examples import path_of
from benchmarks.accuracy.runner import read_rows
from benchmarks.peers.authors import transformers
from benchmarks.peers.authors.architectures import Layer
from benchmarks.peers.baselines.gpumemnet import EPOCHS, Bins, Classifier, Kind
from benchmarks.peers.baselines.network import Network
from benchmarks.tables import table
from vramcast.core.files import digest
from vramcast.core.units import MIB
from vramcast.learner import examples

FOLDS: Final = 3  # spec: GPUMemNet
SEED: Final = 42  # spec: GPUMemNet, seed of the folds
TEST_SHARE: Final = 0.7  # spec: GPUMemNet, share of each held-out fold
KINDS: Final[tuple[Kind, ...]] = ("mlp", "transformer")
FILES: Final = {"mlp": "gpumemnet_mlp_step2.csv", "cnn": "gpumemnet_cnn_step1.csv", "transformer": transformers.FILE}
BIN_MIB: Final = {"mlp": 1000, "cnn": 8000, "transformer": 8000}  # spec: GPUMemNet
CRASHED_MIB: Final = 45_000  # spec: GPUMemNet, value of a run out of memory
ROWS: Final = {"mlp": 3000, "cnn": 6516, "transformer": 5011}  # measured: rows of the published tables
# measured: means of the authors' fold files: accuracy, weighted F1, share below the true class
PUBLISHED: Final[dict[tuple[str, Kind], tuple[float, float, float]]] = {
    ("mlp", "mlp"): (0.9762, 0.9736, 0.0176),
    ("mlp", "transformer"): (0.9838, 0.9840, 0.0076),
    ("cnn", "mlp"): (0.796, 0.801, 0.072),
    ("cnn", "transformer"): (0.803, 0.808, 0.078),
    ("transformer", "mlp"): (0.848, 0.841, 0.107),
    ("transformer", "transformer"): (0.858, 0.857, 0.064),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of some rows; `below` is the share of rows predicted below their class."""

    n: int
    accuracy: float
    f1: float
    below: float

    @classmethod
    def of(cls, said: Sequence[int], true: Sequence[int]) -> Figures:
        """Return the figures of predicted and true classes."""
        pairs = list(zip(said, true, strict=True))
        f1 = float(f1_score(true, said, average="weighted", zero_division=0))
        right, below = (sum(test(*pair) for pair in pairs) / len(pairs) for test in (operator.eq, operator.lt))
        return cls(len(pairs), right, f1, below)


@dataclass(frozen=True, slots=True)
class Fold:
    """Answers of one fold: numbers of the tested rows, and their predicted classes."""

    tested: tuple[int, ...]
    said: tuple[int, ...]
    epochs: int
    weights: int


@dataclass(frozen=True, slots=True)
class Row:
    """A measured run; a run out of memory has the size of its class."""

    name: str
    network: Network
    measured_bytes: int


def network_of(row: dict[str, str]) -> Network:
    """Return the network in a row of GPUMemNet's tables."""
    layers = tuple(Layer(str(name), int(size), int(count)) for name, size, count in ast.literal_eval(row["Activations-Params"]))
    return Network(int(row["Batch Size"]), layers, sum(layer.parameters for layer in layers))


def rows_of(name: str) -> list[Row]:
    """Return every row of a set that measured anything, including crashed ones, as in the publication."""
    rows = []
    for row in read_rows(FILES[name]):
        crashed = row.get("Status") == "OOM_CRASH"
        size_mib = CRASHED_MIB if crashed else int(row["Max GPU Memory (MiB)"])
        if size_mib and row["Activations-Params"].strip():
            example = row["Filename"] if name == "mlp" else f"gpumemnet-{name}-{digest(row['Filename'])}"
            rows.append(Row(example, network_of(row), size_mib * MIB))
    return rows


def ours_of(name: str) -> dict[str, int]:
    """Return the simulated process peak of each stored example of a set; {} without any, and for MLPs, which name no stack."""
    path = path_of(name)
    found = examples.read(path)[0] if path.exists() and name != "mlp" else []
    return {example.id: example.reserved + example.context for example in found}


def folds_of(kind: Kind, rows: Sequence[Row], bins: Bins, *, seed: int, carried: bool, epochs: int = EPOCHS) -> list[Fold]:
    """Return each fold's answers.

    Args:
        kind: Kind of the estimator.
        rows: The runs.
        bins: Their classes.
        seed: Seed of weights and order.
        carried: Use one network for all folds.
        epochs: Maximum number of epochs in each fold.
    """
    networks, classes = [row.network for row in rows], [bins.index(row.measured_bytes) for row in rows]
    classifier = Classifier(kind, bins.count, seed=seed, epochs=epochs, warm_start=carried)
    found = []
    for learnt, held_out in KFold(FOLDS, shuffle=True, random_state=SEED).split(np.arange(len(rows))):
        n_test = int(len(held_out) * TEST_SHARE)
        test, validation = held_out[:n_test], held_out[n_test:]
        classifier.fit(
            *([networks[i] for i in learnt], [classes[i] for i in learnt]),
            *([networks[i] for i in validation], [classes[i] for i in validation]),
        )
        said = classifier.predict([networks[i] for i in test])
        found.append(Fold(tuple(map(int, test)), tuple(said), classifier.epochs_done, classifier.weights))
    return found


def lines_of(
    name: str, kind: Kind, rows: Sequence[Row], ours: dict[str, int], *, seed: int, carried: bool, epochs: int = EPOCHS
) -> list[list[object]]:
    """Return the lines of one estimator: on all tested rows, as published, on those that we traced, and ours on these."""
    bins = Bins.of([row.measured_bytes for row in rows], BIN_MIB[name])
    folds = folds_of(kind, rows, bins, seed=seed, carried=carried, epochs=epochs)
    said = {number: answer for fold in folds for number, answer in zip(fold.tested, fold.said, strict=True)}
    true = {number: bins.index(rows[number].measured_bytes) for number in said}
    traced = {number: bins.index(ours[rows[number].name]) for number in said if rows[number].name in ours}
    taken = ", ".join(str(fold.epochs) for fold in folds)
    title = f"{name}: {kind}, {'one network' if carried else 'new in each fold'}"
    lines = [
        [title, *_cells(Figures.of(list(said.values()), list(true.values()))), taken, folds[0].weights],
        [f"{name}: {kind}, published", ROWS[name], *(f"{value:.3f}" for value in PUBLISHED[name, kind]), "-", "-"],
    ]
    if traced:
        same = [true[number] for number in traced]
        theirs, own = Figures.of([said[i] for i in traced], same), Figures.of(list(traced.values()), same)
        lines.append([f"{name}: {kind}, traced rows", *_cells(theirs), "-", "-"])
        lines.append([f"{name}: vramcast, traced rows", *_cells(own), "-", "-"])
    return lines


def _cells(figures: Figures) -> list[object]:
    return [figures.n, *(f"{value:.4f}" for value in (figures.accuracy, figures.f1, figures.below))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--set", choices=list(FILES), default="mlp", help="the table")
    parser.add_argument("--kind", choices=KINDS, help="run only this estimator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--carried", action="store_true", help="use one network for all folds, as published")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, ours = rows_of(options.set), ours_of(options.set)
    lines: list[list[object]] = []
    for kind in KINDS if options.kind is None else (options.kind,):
        lines += lines_of(options.set, kind, rows, ours, seed=options.seed, carried=options.carried)
    print(table(["estimator", "tested rows", "accuracy", "F1", "below", "epochs", "weights"], lines))


if __name__ == "__main__":
    main()
