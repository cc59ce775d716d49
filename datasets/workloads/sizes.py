"""Widths and batches for a chosen size, so that the list is spread evenly over memory rather than over arguments.

A draw first chooses the bytes of the job, and their split between the model's state and the memory added by a batch; the
closed forms of `synthetic.py` and `zoo.py` then give the width and the batch. They are wrong by a factor of up to two,
which does not matter for the spread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vramcast.core.units import GIB
from vramcast.datasets.workloads.sampling import Draw

LOWEST_BYTES = 0.1 * GIB  # arbitrary: with a context of about half a GiB, less makes no difference
HIGHEST_BYTES = 100 * GIB  # arbitrary: above an 80 GB card, below one of 141 GB
WIDEST = 4096  # arbitrary: wider ones take seconds per step in float32
LENGTHS = (32, 64, 100, 128, 200, 256, 384, 512, 777, 1024, 2048)  # arbitrary: lengths of texts, in tokens


@dataclass(frozen=True, slots=True)
class JobSize:
    """The chosen size of a job.

    Attributes:
        state_bytes: Memory for parameters, gradients and the optimizer's state.
        batch_bytes: Memory that a batch adds.
    """

    state_bytes: float
    batch_bytes: float

    def parameters(self, bytes_each: float) -> float:
        """Return the number of parameters at this many bytes each."""
        return self.state_bytes / bytes_each

    def less(self, state_bytes: float) -> JobSize:
        """Return the budget left for the batch when the state takes `state_bytes`."""
        return JobSize(state_bytes, max(0.0, self.state_bytes + self.batch_bytes - state_bytes))


def draw_budget(draw: Draw, highest_bytes: float = HIGHEST_BYTES) -> JobSize:
    """Return a size, uniform in its logarithm, and its shares."""
    total = draw.log_uniform(LOWEST_BYTES, highest_bytes)
    share = draw.uniform(0.03, 0.9)  # arbitrary: neither part is everything
    return JobSize(total * share, total * (1 - share))


def largest(cost: Callable[[int], float], budget: float, low: int, high: int, multiple: int = 1) -> int:
    """Return the largest multiple of `multiple` from `low` to `high` whose cost, which grows, is within the budget."""
    low, high = -(-low // multiple), high // multiple
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle * multiple) <= budget:
            low = middle
        else:
            high = middle - 1
    return low * multiple


def draw_batch(draw: Draw, batch_bytes: float, sample_bytes: float, *, lowest: int = 1, highest: int = 1024) -> int:
    """Return about as many samples as fit in `batch_bytes`; half of the draws are powers of two, as in practice."""
    fitting = min(max(int(batch_bytes / sample_bytes), lowest), highest)
    rounding = draw.weighted({"power": 50, "eight": 20, "none": 30})
    if rounding == "power":
        return max(lowest, int(2 ** (fitting.bit_length() - 1)))
    return fitting // 8 * 8 if rounding == "eight" and fitting // 8 * 8 >= lowest else fitting


def draw_fitting(
    draw: Draw, options: Sequence[int], batch_bytes: float, sample_bytes: Callable[[int], float], lowest: int, highest: int
) -> int:
    """Return one of `options` (a side, a length) with which a batch of `lowest` to `highest` samples fills the budget.

    If none does, return the nearest: the first (smallest) or the last.
    """
    good = [option for option in options if lowest <= batch_bytes / sample_bytes(option) <= highest]
    if good:
        return draw.choice(good)
    return options[0] if batch_bytes < lowest * sample_bytes(options[0]) else options[-1]
