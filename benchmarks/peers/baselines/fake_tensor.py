"""The peak of one forward and backward pass on fake tensors: parameters, buffers, inputs, activations, gradients.

Source: PyTorch's FakeTensorMode, as GPUMemNet (arXiv 2602.17817, 2026) uses it for timm's models in its sheet of related work:
no optimizer, no context, no allocator. Live bytes are counted by storage, with autograd's own lifetimes (`look.py`).
Deviations: the fake tensors are on the host; the sheet does not state its device. `with_optimizer` adds the optimizer's
state (a parameter's size times the number of states), which the publication does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.baselines.baseline import Formula, Sample, Target


class FakeTensor(Formula):
    """The sum as a baseline.

    Args:
        with_optimizer: Add the optimizer's state.
    """

    target: Target = "reserved"

    def __init__(self, *, with_optimizer: bool = False) -> None:
        self.name = "FakeTensor + optimizer" if with_optimizer else "FakeTensor"
        self.with_optimizer = with_optimizer

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        """Return the peak of each run; None if the model did not run on fake tensors."""
        return [self._one(sample) for sample in test]

    def _one(self, sample: Sample) -> int | None:
        network = sample.network
        if network is None or network.fake_peak_bytes is None:
            return None
        return network.fake_peak_bytes + (sample.optimizer_states * sum(network.weight_bytes) if self.with_optimizer else 0)
