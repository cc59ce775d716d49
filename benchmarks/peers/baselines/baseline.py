"""The common protocol of all methods, and a job as a method may see it.

A baseline sees the parts of a job that its authors' tool would: the network, the batch, the card. None reads the null GPU's
peaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from benchmarks.peers.baselines.network import Network
from vramcast.learner.examples import Example

Target = Literal["process", "reserved"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured job for baselines.

    Attributes:
        example: The run; its measured peaks are only for `fit`.
        network: The model's network; None for an unknown model.
        published: Bytes that the method's own authors, or others in a comparison with it, printed for this run.
    """

    example: Example
    network: Network | None = None
    published: Mapping[str, int] = field(default_factory=dict)

    @property
    def optimizer_states(self) -> int:
        """Return the number of tensors of a parameter's size in the job's optimizer state."""
        return round(self.example.features["optimizer_states"])

    def measured(self, target: Target) -> int | None:
        """Return the measured peak; None if it was not measured or is only a lower bound."""
        example = self.example
        if example.censored:
            return None
        return example.measured_process if target == "process" else example.measured_reserved


class Baseline(Protocol):
    """A method that is fitted on some runs and evaluated on others.

    Attributes:
        name: Name for tables.
        target: The peak that its authors estimate; a table may use it for the other one too, and notes that.
    """

    @property
    def name(self) -> str:
        """Return the name."""

    @property
    def target(self) -> Target:
        """Return the target."""

    def fit(self, train: Sequence[Sample]) -> None:
        """Learn from measured runs; formulas learn nothing."""

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        """Return bytes for each run, in order; None if the method does not cover such a job."""


class Formula:
    """A baseline that learns nothing."""

    def fit(self, train: Sequence[Sample]) -> None:
        """Do nothing."""
