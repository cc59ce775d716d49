"""SchedTune's method: a random forest over a job's sizes and its card's data sheet.

Source: Albahar et al., SchedTune, CCGrid 2022; columns as in its public table (hadeelalbahar/SchedTune, `model_stats.csv`):
batch size, MB of activations, parameters, and input; the card's bandwidth, memory clock, and number of SMs.
Deviations: fitted on the available runs (the published forests: 12 torchvision CNNs on 5 other cards); the card's CUDA and
tensor cores are left out, because they are equivalent to SMs and generation here; the publication adds its largest error to
every estimate, which is left out, so that its error is not made worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from benchmarks.peers.baselines.baseline import Sample, Target
from benchmarks.peers.baselines.network import Network
from vramcast.core.units import MIB
from vramcast.hardware.cards import device

TREES: Final = 100  # spec: scikit-learn's default; the publication names none
_ELEMENT_BYTES: Final = 4  # spec: float32, as in the publication's table


class SchedTune:
    """The forest as a baseline.

    Args:
        target: The peak that it learns.
        seed: Seed of the forest.
    """

    name = "SchedTune"

    def __init__(self, *, target: Target, seed: int = 0) -> None:
        self.target: Target = target
        self.seed = seed
        self._forest: RandomForestRegressor | None = None

    def fit(self, train: Sequence[Sample]) -> None:
        """Learn from the runs with a known network and a measured peak."""
        pairs = [(columns(s.network, s.example.gpu), y) for s in train if s.network and (y := s.measured(self.target))]
        self._forest = None
        if pairs:
            self._forest = RandomForestRegressor(TREES, random_state=self.seed)
            self._forest.fit(np.array([x for x, _ in pairs]), np.array([y / MIB for _, y in pairs]))

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        """Return the forest's bytes; None without a network, or before training."""
        found: list[int | None] = [None] * len(test)
        known = [(i, sample) for i, sample in enumerate(test) if sample.network is not None]
        if self._forest is None or not known:
            return found
        said = self._forest.predict(np.array([columns(s.network, s.example.gpu) for _, s in known if s.network is not None]))
        for (i, _), mib in zip(known, said, strict=True):
            found[i] = round(float(mib) * MIB)
        return found


def columns(network: Network, gpu: str) -> list[float]:
    """Return batch size; MiB of activations, parameters, and input; GB/s, memory clock in MHz, and SMs of the card."""
    card = device(gpu)
    bandwidth = 2 * card.memory_clock_khz * card.memory_bus_bits / 8 / 1e6
    sizes = (
        network.activations * network.batch_size * _ELEMENT_BYTES,
        network.parameters * _ELEMENT_BYTES,
        network.input_bytes,
    )
    return [
        float(network.batch_size),
        *(size / MIB for size in sizes),
        *(bandwidth, card.memory_clock_khz / 1000, float(card.sm_count)),
    ]
