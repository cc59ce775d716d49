"""One measured run with an estimator's prediction: the input of the metrics, for any tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vramcast.core.brief import brief
from vramcast.core.errors import DatasetError


@brief
@dataclass(frozen=True, slots=True)
class Scored:
    """One run, measured and estimated. All its numbers must be of the same peak (reserved or process).

    Attributes:
        id: Id of the run.
        group: The model: runs of one model are not independent of each other.
        family: The model's family, for tables.
        gpu: The card, for tables.
        optimizer: The optimizer, for tables.
        measured_bytes: The measured peak in bytes, > 0; for a run that died or is `censored`, the memory it had reached.
        estimated_bytes: The point estimate in bytes, > 0.
        bounds: Upper bounds in bytes, by level in (0, 1).
        card_bytes: The card's size in bytes; None: unknown.
        ran_out_of_memory: The uncapped run ran out of memory.
        said_out_of_memory: The estimator predicted that it would.
        ran_at: The smallest cap in bytes at which the job was seen to succeed, xMem's second round; None: not tried.
        died_at: The largest cap in bytes at which it was seen to die.
        is_emulated: The second round was simulated, not run.
        censored: The measurement is only a lower bound.
        batch_size: Batch size; 0: unknown.
        calibrated_by: The group of runs that calibrated the bounds, in words.
        promised: Levels with enough models for a guarantee.

    Raises:
        DatasetError: The measurement or the estimate is not above 0, or the level of a bound is not in (0, 1).

    Example:
        >>> run = vramcast.Scored(
        ...     id="run 1", group="vgg16", family="vision", gpu="a100", optimizer="adam",
        ...     measured_bytes=8 << 30, estimated_bytes=9 << 30, bounds={0.99: 10 << 30},
        ... )
        >>> run.error, run.covered_by(run.bounds[0.99])
        (0.125, True)
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
                f"Run '{self.id}' has measured {self.measured_bytes} and estimated {self.estimated_bytes} bytes, but both "
                "must be above 0. Leave out runs without a measurement or an estimate."
            )
        if wrong := [level for level in self.bounds if not 0 < level < 1]:
            raise DatasetError(f"Run '{self.id}' has a bound at level {wrong[0]}: give a level between 0 and 1, such as 0.99.")

    @property
    def is_lower_bound(self) -> bool:
        """True if the job would have taken `measured_bytes` or more: it is censored, or it died."""
        return self.censored or self.ran_out_of_memory

    @property
    def error(self) -> float | None:
        """Return estimate / measured - 1; None if the measurement is only a lower bound."""
        return None if self.is_lower_bound else self.estimated_bytes / self.measured_bytes - 1

    def runs_in(self, size_bytes: int) -> bool | None:
        """Return whether the job succeeds when capped at `size_bytes`; None if no second round decides.

        Args:
            size_bytes: The cap in bytes.

        Returns:
            Whether it succeeds; None: unknown.
        """
        if self.ran_at is not None and size_bytes >= self.ran_at:
            return True
        return False if self.died_at is not None and size_bytes <= self.died_at else None

    def covered_by(self, size_bytes: int) -> bool | None:
        """Return whether the job stays within `size_bytes`; None if that is unknown.

        A lower bound can only prove a failure: less than the job had reached is too little, more proves nothing.

        Args:
            size_bytes: A bound or a request, in bytes.

        Returns:
            Whether it stays within; None: unknown.
        """
        if size_bytes < self.measured_bytes:
            return False
        return None if self.is_lower_bound else True
