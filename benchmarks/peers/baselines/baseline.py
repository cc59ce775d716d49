"""What every method is compared by: one protocol, and one job as a method may see it.

A baseline sees of a job what its authors' tool would: the network, the batch, the card. None reads the null GPU's peaks.
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
    """One measured job as baselines see it.

    Attributes:
        example: The run; its measured peaks are for `fit` alone.
        network: None: the model is not known here.
        published: Bytes which the method's own authors, or who compared with it, printed for this run.
    """

    example: Example
    network: Network | None = None
    published: Mapping[str, int] = field(default_factory=dict)

    @property
    def optimizer_states(self) -> int:
        """How many tensors of a parameter's size the job's optimizer keeps."""
        return round(self.example.features["optimizer_states"])

    def measured(self, target: Target) -> int | None:
        """Return the measured peak; None where it was not measured or is a lower bound only."""
        example = self.example
        if example.censored:
            return None
        return example.measured_process if target == "process" else example.measured_reserved


class Baseline(Protocol):
    """A method: fitted on some runs, asked about others.

    Attributes:
        name: For tables.
        target: What its authors compare it with; a table may use it for the other too, and says so.
    """

    @property
    def name(self) -> str:
        """See above."""

    @property
    def target(self) -> Target:
        """See above."""

    def fit(self, train: Sequence[Sample]) -> None:
        """Learn from measured runs; formulas learn nothing."""

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        """Return bytes for each run, in order; None: the method does not speak about such a job."""


class Formula:
    """A baseline which learns nothing."""

    def fit(self, train: Sequence[Sample]) -> None:
        """Do nothing."""
