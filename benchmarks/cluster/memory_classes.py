"""Memory classes that GPUMemNet's estimator predicts for its own rows, from ensembles that did not learn from the row.

    python -m benchmarks.cluster.memory_classes       # takes minutes, once: answers are stored in build/cluster/

The MLP-type ensemble (`benchmarks.peers.baselines.gpumemnet`) with classes of 1000 MiB for MLPs and 8000 MiB for CNNs, as
published; three folds as there, with a new ensemble in each. An estimate is the upper edge of the class. A row has the name of
its example.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from sklearn.model_selection import KFold

from benchmarks.accuracy.runner import ROOT, data_folder, read_rows
from benchmarks.peers.baselines.gpumemnet import EPOCHS, Bins, Classifier
from benchmarks.peers.baselines.gpumemnet_estimators import FOLDS, SEED, network_of
from benchmarks.peers.baselines.network import Network
from vramcast.core.files import atomic_write, digest
from vramcast.core.plain import json_value
from vramcast.core.units import MIB

KEPT: Final = ROOT / "build" / "cluster"
FILES: Final = {"mlp": ("gpumemnet_mlp_step1.csv", "gpumemnet_mlp_step2.csv"), "cnn": ("gpumemnet_cnn_step1.csv",)}
BIN_MIB: Final = {"mlp": 1000, "cnn": 8000}  # spec: GPUMemNet
_STOPS: Final = (
    0.15  # arbitrary: share of the training rows used for early stopping, as in `benchmarks.peers.baselines.gpumemnet`
)


def true_edge(measured_bytes: int, bin_mib: int) -> int:
    """Return the upper edge of a peak's class; a peak on an edge belongs to the class below."""
    return -(-measured_bytes // (bin_mib * MIB)) * bin_mib * MIB


def edges_of(name: str) -> dict[str, int]:
    """Return the upper edge of the predicted class by row, in bytes; {} if the tables are missing.

    Args:
        name: mlp or cnn.
    """
    paths = [data_folder() / file for file in FILES[name]]
    if not all(path.exists() for path in paths):
        return {}
    kept, state = KEPT / f"gpumemnet-{name}.json", _state(paths)
    if kept.exists():
        found = json_value(kept.read_text(encoding="utf-8"), str(kept))
        if found["tables"] == state:
            return {str(row): int(edge) for row, edge in found["edges"].items()}
    table = [row for file in FILES[name] for row in read_rows(file)]
    rows = [(_name(row, name), network_of(row), int(row["Max GPU Memory (MiB)"]) * MIB) for row in table]
    edges = held_out(rows, BIN_MIB[name])
    KEPT.mkdir(parents=True, exist_ok=True)
    with atomic_write(kept) as file:
        file.write(json.dumps({"tables": state, "edges": edges}).encode())
    return edges


def held_out(rows: Sequence[tuple[str, Network, int]], bin_mib: int, *, epochs: int = EPOCHS) -> dict[str, int]:
    """Return the predicted upper edge of a class by name, from an ensemble fitted on the other folds.

    Args:
        rows: Name, network and measured bytes of each.
        bin_mib: Width of a class.
        epochs: Maximum number of epochs.
    """
    bins = Bins.of([size for *_, size in rows], bin_mib)
    networks, classes = [network for _, network, _ in rows], [bins.index(size) for *_, size in rows]
    found: dict[str, int] = {}
    for learnt, asked in KFold(FOLDS, shuffle=True, random_state=SEED).split(np.arange(len(rows))):
        order = np.random.default_rng(SEED).permutation(learnt)
        stops, learns = np.split(order, [max(round(_STOPS * len(order)), 1)])
        classifier = Classifier("mlp", bins.count, epochs=epochs)
        classifier.fit(*([part[i] for i in some] for some in (learns, stops) for part in (networks, classes)))
        said = classifier.predict([networks[i] for i in asked])
        found |= {rows[i][0]: bins.upper_bytes(index) for i, index in zip(asked, said, strict=True)}
    return found


def _name(row: dict[str, str], name: str) -> str:
    return row["Filename"] if name == "mlp" else f"gpumemnet-cnn-{digest(row['Filename'])}"


def _state(paths: Sequence[Path]) -> str:
    """Return a digest of these tables' contents."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def main() -> None:
    """Predict the classes and print their accuracy."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    torch.set_num_threads(1)
    for name, files in FILES.items():
        edges = edges_of(name)
        pairs = [
            (edges[_name(row, name)], true_edge(int(row["Max GPU Memory (MiB)"]) * MIB, BIN_MIB[name]))
            for file in files
            for row in read_rows(file)
        ]
        right, below = (np.mean([test(said, true) for said, true in pairs]) for test in (int.__eq__, int.__lt__))
        print(f"{name}: {len(pairs)} rows, {100 * right:.1f} % in their class, {100 * below:.1f} % below it")


if __name__ == "__main__":
    main()
