"""The training loop behind GPUMemNet's first CNN rows, as a script for `vramcast run`.

    python cnn_script.py '{"network": {"channels": 3, "classes": 10, ...}, "batch": 8}'

The parts of the public script that decide memory are as in mlp_script.py: two samples first pass through the model; 4,096
samples, so the last batch of an epoch is smaller. Its full batches are all alike: three represent an epoch's.
Source: itu-rad/GPUMemNet, cnn.py of September 2024; rewritten.
"""

from __future__ import annotations

import json
import sys

import torch

from benchmarks.accuracy.scripts import mlp_script
from benchmarks.peers.authors.networks import cnn

_ALIKE = 3  # measured: full batches after the third do not change these networks' reserved peak


def batch_sizes(batch: int) -> list[int]:
    """Return the sizes of the trained batches: some full ones, the short one, full ones again."""
    sizes = mlp_script.batch_sizes(batch)
    short = [size for size in sizes if size != batch]
    full = [batch] * min(_ALIKE, len(sizes) - len(short))
    return [*full, *short, *full, *short]


def main(job: dict[str, object]) -> None:
    """Train; the caller stops earlier."""
    network = job["network"]
    assert isinstance(network, dict)
    device = torch.device("cuda")
    model = cnn(**network).to(device)
    shape = (network["channels"], network["size"], network["size"])
    summary = torch.rand(2, *shape).to(device)
    model(summary)
    del summary
    criterion = torch.nn.CrossEntropyLoss() if network["classes"] > 1 else torch.nn.BCELoss()
    mlp_script.train(model, criterion, shape, batch_sizes(int(str(job["batch"]))))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
