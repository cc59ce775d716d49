"""The training loop behind GPUMemNet's transformer rows, as a script for `vramcast run`.

    python transformer_script.py '{"classes": 10, "width": 128, "depth": 2, "heads": 2, "inner": 300, "dropout": 0.1, ...}'

The parts of the public script that decide memory: one batch of token ids stays on the card and passes twice through the model;
Adam; the loop variables first name the new batch on the host, which frees the old one on the device. An epoch's full batches
are all alike: three represent them.
Source: itu-rad/GPUMemNet, NeuroNetGen_scripts/Transformer/transformer.py; rewritten.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn

_ALIKE = 3  # measured: full batches after the third do not change these networks' reserved peak


def batch_sizes(batch: int, samples: int) -> list[int]:
    """Return the sizes of the trained batches of two epochs: some full ones, and the short last one."""
    epoch = [batch] * min(_ALIKE, samples // batch) + [samples % batch] * bool(samples % batch)
    return epoch * 2


class Transformer(nn.Module):
    """Token ids through an embedding, an encoder and a linear layer over the mean of its outputs."""

    def __init__(
        self, classes: int, width: int, depth: int, heads: int, inner: int, dropout: float, tokens: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(1, tokens, width))
        layer = nn.TransformerEncoderLayer(width, heads, inner, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.end = nn.Linear(width, classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return (batch, classes) of (batch, tokens)."""
        inner = self.encoder(self.embedding(ids) + self.places)
        logits: torch.Tensor = self.end(inner.mean(dim=1))
        return logits


def main(job: dict[str, Any]) -> None:
    """Train; the caller stops earlier."""
    batch, samples = job.pop("batch"), job.pop("samples")
    with torch.device("meta"):  # the card gets the same weights in the same order, and the host need not hold gigabytes
        model = Transformer(**job)
    model.to_empty(device="cuda")
    shown = torch.zeros(batch, job["tokens"], dtype=torch.int64).to("cuda")
    for _ in range(2):  # a check, and a model summary
        model(shown)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    for size in batch_sizes(batch, samples):
        inputs, labels = torch.zeros(size, job["tokens"], dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
        inputs, labels = inputs.to("cuda"), labels.to("cuda")
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        loss.item()
        _, predicted = torch.max(outputs, 1)
        (predicted == labels).sum().item()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
