"""One measured run beside what an estimator said of it: all that the metrics need, of any tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vramcast.core.errors import DatasetError


@dataclass(frozen=True, slots=True)
class Scored:
    """One run, measured and estimated. Which peak it is (reserved or process) must be the same in all of its numbers.

    Attributes:
        id: Of the run.
        group: The model: runs of one model are not independent of each other.
        family, gpu, optimizer: For tables.
        measured_bytes: The measured peak; where the run died or is `censored`, what it had reached.
        estimated_bytes: The point estimate.
        bounds: Level in (0, 1) -> upper bound in bytes.
        card_bytes: The card's size; None unknown.
        ran_out_of_memory: The uncapped run died for want of memory.
        said_out_of_memory: The estimator said that it would.
        ran_at: The smallest cap at which the job was seen to run, xMem's second round; None: nobody tried.
        died_at: The largest cap at which it was seen to die.
        is_emulated: The second round was played by the simulator, not run.
        censored: The measurement is only a lower bound.
        batch_size: 0 unknown.
        calibrated_by: The group of runs which the bounds were made of, in words.
        promised: Levels at which enough models stand behind the bound.
    """

    id: str
    group: str
    family: str
    gpu: str
    optimizer: str
    measured_bytes: int
    estimated_bytes: int
    bounds: Mapping[float, int] = field(default_factory=dict)
    card_bytes: int | None = None
    ran_out_of_memory: bool = False
    said_out_of_memory: bool = False
    ran_at: int | None = None
    died_at: int | None = None
    is_emulated: bool = False
    censored: bool = False
    batch_size: int = 0
    calibrated_by: str = ""
    promised: frozenset[float] = frozenset()

    def __post_init__(self) -> None:
        if self.measured_bytes <= 0 or self.estimated_bytes <= 0:
            raise DatasetError(
                f"Run '{self.id}' has measured {self.measured_bytes} and estimated {self.estimated_bytes} bytes: above 0 is "
                "expected. Leave runs without a measurement or an estimate out."
            )
        if wrong := [level for level in self.bounds if not 0 < level < 1]:
            raise DatasetError(f"Run '{self.id}' has a bound at level {wrong[0]}: a level lies between 0 and 1, as 0.99.")

    @property
    def is_lower_bound(self) -> bool:
        """Whether the job would have taken `measured_bytes` or more: it is censored, or it died there."""
        return self.censored or self.ran_out_of_memory

    @property
    def error(self) -> float | None:
        """Return estimate / measured - 1; None where the measurement is only a lower bound."""
        return None if self.is_lower_bound else self.estimated_bytes / self.measured_bytes - 1

    def runs_in(self, size_bytes: int) -> bool | None:
        """Return whether the job runs when capped at `size_bytes`; None where no second round tells."""
        if self.ran_at is not None and size_bytes >= self.ran_at:
            return True
        return False if self.died_at is not None and size_bytes <= self.died_at else None

    def covered_by(self, size_bytes: int) -> bool | None:
        """Return whether the job stays within `size_bytes`; None where that cannot be told.

        Of a lower bound only the failure shows: less than what the job had reached is too little, more says nothing.
        """
        if size_bytes < self.measured_bytes:
            return False
        return None if self.is_lower_bound else True
