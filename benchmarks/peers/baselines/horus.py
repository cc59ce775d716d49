"""Horus's formula: activations, parameters and gradients at 4 bytes each.

Source: Yeung et al., Horus, TPDS 33(1), 2022 (formula in CARMA's version for PyTorch, arXiv 2508.19073):

    4 B * (activations * batch + parameters + batch * gradients), gradients = parameters

Activations are elements of the layers' outputs for one sample. A gradient for each sample is part of the formula; PyTorch keeps
one for the batch. The formula has no optimizer, no context, and no allocator.
Deviations: the layers are the modules without children that run, each time they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.peers.baselines.baseline import Formula, Sample, Target

_ELEMENT_BYTES: Final = 4  # spec: Horus, float32


class Horus(Formula):
    """The formula as a baseline."""

    name = "Horus"
    target: Target = "process"

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        """Return the formula's bytes; None without a network."""
        return [
            None if (network := sample.network) is None
            else horus_bytes(network.activations, network.parameters, network.batch_size)
            for sample in test
        ]  # fmt: skip


def horus_bytes(activations: int, parameters: int, batch_size: int) -> int:
    """Return the formula's value: elements for one sample, elements of the model, samples."""
    return _ELEMENT_BYTES * (activations * batch_size + parameters + batch_size * parameters)
