"""GPUMemNet's two estimators, reimplemented, on its MLP data: accuracy of the memory class in 3-fold cross-validation.

    python -m benchmarks.accuracy.gpumemnet_estimators [--kind mlp] [--step 2] [--bin-mib 1000] [--seed 0] [--carried]

As published: the set with norms and dropout (step 2), classes of 1000 MiB, KFold(3, shuffled, seed 42); in each held-out fold,
the first 70 % test and the rest stops the training. Unlike the published code, every fold starts with a new network.
`--carried` keeps the same network, as the published code does: folds 2 and 3 then test rows that were learned from.
"""

from __future__ import annotations

import argparse
import ast
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold

from benchmarks.accuracy.runner import read_rows
from benchmarks.peers.authors.architectures import Layer
from benchmarks.peers.baselines.gpumemnet import EPOCHS, Bins, Classifier, Kind
from benchmarks.peers.baselines.network import Network
from benchmarks.tables import table
from vramcast.core.units import MIB

FOLDS: Final = 3  # spec: GPUMemNet
SEED: Final = 42  # spec: GPUMemNet, seed of the folds
TEST_SHARE: Final = 0.7  # spec: GPUMemNet, share of each held-out fold
KINDS: Final[tuple[Kind, ...]] = ("mlp", "transformer")
# measured: means of the authors' fold files, 3000 rows: accuracy, weighted F1, share below the true class
PUBLISHED: Final[dict[Kind, tuple[float, float, float]]] = {
    "mlp": (0.9762, 0.9736, 0.0176),
    "transformer": (0.9838, 0.9840, 0.0076),
}


@dataclass(frozen=True, slots=True)
class Fold:
    """Figures of one fold; `below` is the share of rows predicted below their class."""

    n: int
    accuracy: float
    f1: float
    below: float
    epochs: int
    weights: int


def network_of(row: dict[str, str]) -> Network:
    """Return the network in a row of GPUMemNet's tables."""
    layers = tuple(Layer(str(name), int(size), int(count)) for name, size, count in ast.literal_eval(row["Activations-Params"]))
    return Network(int(row["Batch Size"]), layers, sum(layer.parameters for layer in layers))


def rows_of(step: int) -> list[tuple[Network, int]]:
    """Return network and measured bytes of every row of a set, including crashed ones, as in the publication."""
    rows = read_rows(f"gpumemnet_mlp_step{step}.csv")
    return [(network_of(row), int(row["Max GPU Memory (MiB)"]) * MIB) for row in rows]


def folds_of(
    kind: Kind, rows: list[tuple[Network, int]], bin_mib: int, *, seed: int, carried: bool, epochs: int = EPOCHS
) -> list[Fold]:
    """Return each fold's figures.

    Args:
        kind: Kind of the estimator.
        rows: Network and measured bytes.
        bin_mib: Width of a class.
        seed: Seed of weights and order.
        carried: Use one network for all folds.
        epochs: Maximum number of epochs in each fold.
    """
    bins = Bins.of([size for _, size in rows], bin_mib)
    networks = [network for network, _ in rows]
    classes = [bins.index(size) for _, size in rows]
    classifier = Classifier(kind, bins.count, seed=seed, epochs=epochs, warm_start=carried)
    found = []
    for learnt, held_out in KFold(FOLDS, shuffle=True, random_state=SEED).split(np.arange(len(rows))):
        n_test = int(len(held_out) * TEST_SHARE)
        test, validation = held_out[:n_test], held_out[n_test:]
        classifier.fit(
            *([networks[i] for i in learnt], [classes[i] for i in learnt]),
            *([networks[i] for i in validation], [classes[i] for i in validation]),
        )
        said = np.array(classifier.predict([networks[i] for i in test]))
        true = np.array([classes[i] for i in test])
        f1 = float(f1_score(true, said, average="weighted", zero_division=0))
        below = float((said < true).mean())
        found.append(Fold(len(test), float((said == true).mean()), f1, below, classifier.epochs_done, classifier.weights))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=KINDS, help="run only this estimator")
    parser.add_argument("--step", type=int, choices=(1, 2), default=2)
    parser.add_argument("--bin-mib", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--carried", action="store_true", help="use one network for all folds, as published")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = rows_of(options.step)
    lines: list[list[object]] = []
    for kind in KINDS if options.kind is None else (options.kind,):
        started = time.perf_counter()
        folds = folds_of(kind, rows, options.bin_mib, seed=options.seed, carried=options.carried)
        seconds = time.perf_counter() - started
        means = [float(np.mean([getattr(fold, name) for fold in folds])) for name in ("accuracy", "f1", "below")]
        each = ", ".join(f"{fold.accuracy:.4f}" for fold in folds)
        epochs = ", ".join(str(fold.epochs) for fold in folds)
        name = f"{kind}, {'one network' if options.carried else 'new in each fold'}"
        lines.append([name, len(rows), *(f"{mean:.4f}" for mean in means), each, epochs, folds[0].weights, f"{seconds:.0f} s"])
        if (options.step, options.bin_mib) == (2, 1000):
            lines.append([f"{kind}, published", 3000, *(f"{value:.4f}" for value in PUBLISHED[kind]), *["-"] * 4])
    columns = ["estimator", "rows", "accuracy", "F1", "below", "accuracy of each fold", "epochs", "weights", "time"]
    print(table(columns, lines))


if __name__ == "__main__":
    main()
