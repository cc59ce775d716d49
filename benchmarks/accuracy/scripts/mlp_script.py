"""The training loop behind GPUMemNet's MLP rows, as a script for `vramcast run`.

    python mlp_script.py '{"features": 4, "batch": 8, "dropout": 0.5, "layers": [["linear", 2]]}'

The parts of the public script that decide memory: a model summary first sends two samples through the model; Adam; 4,096
samples, so the last batch of an epoch is smaller; the loop variables first name the new batch on the host, which frees the old
one on the device, and then the one on the device; only then are the gradients dropped.
Source: itu-rad/GPUMemNet, mlp_next.py; rewritten.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

import torch

from benchmarks.accuracy.builders import mlp

SAMPLES = 4096  # spec: GPUMemNet, mlp_next.py, default of --num_samples


def batch_sizes(batch: int) -> list[int]:
    """Return the sizes of one epoch's batches: full ones, then the remainder."""
    left = SAMPLES % batch
    return [batch] * (SAMPLES // batch) + ([left] if left else [])


def main(job: dict[str, object]) -> None:
    """Train for two epochs; the caller stops earlier."""
    features, batch = (int(str(job[name])) for name in ("features", "batch"))
    layers = tuple((str(name), int(size)) for name, size in job["layers"])  # type: ignore[attr-defined]
    device = torch.device("cuda")
    model = mlp(features, layers, float(str(job["dropout"]))).to(device)
    model(torch.rand(2, features).to(device))
    train(model, torch.nn.CrossEntropyLoss(), (features,), batch_sizes(batch) * 2)


def train(model: torch.nn.Module, criterion: torch.nn.Module, shape: Sequence[int], sizes: Iterable[int]) -> None:
    """Train on a batch of each of these sizes, with samples of this shape."""
    device = torch.device("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for size in sizes:
        inputs, labels = torch.zeros(size, *shape), torch.zeros(size, dtype=torch.int64)
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        loss.item()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
