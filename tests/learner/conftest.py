"""Examples with a known truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES

MIB = 1 << 20
CONTEXT_MIB = 500


def make(
    n: int, *, seed: int = 0, noise: float = 0.02, process: bool = False, per_group: int = 2, convolution: bool = True
) -> list[Example]:
    """Return jobs of two kinds: matmul is simulated exactly; convolutions take exp(0.3 x workspace share + noise) more."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(n):
        features = dict.fromkeys(NAMES, 0.0)
        reserved = int(random.uniform(1000, 20000)) * MIB
        features["log_reserved"] = float(np.log2(reserved))
        residual = 0.0
        is_convolution = convolution and number % 2 == 1
        if is_convolution:
            share = float(random.uniform(0, 1))
            features.update(workspace_count=10.0, workspace_largest_share=share, bytes_convolution=0.5)
            residual = 0.3 * share + float(random.normal(0, noise))
        measured = round(reserved * float(np.exp(residual)))
        found.append(
            Example(
                f"{seed}-{number}",
                group=f"{seed}-{number // (2 * per_group)}-{number % 2}",
                family="cnn" if is_convolution else "mlp",
                gpu="h200",
                stack="one",
                features=features,
                allocated=reserved,
                reserved=reserved,
                measured_reserved=None if process else measured,
                measured_process=measured + CONTEXT_MIB * MIB if process else None,
            )
        )
    return found


@pytest.fixture(scope="session")
def make_examples() -> Callable[..., list[Example]]:
    """Return `make`, which creates examples with a known truth."""
    return make
