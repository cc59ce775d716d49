"""What the allocator counts, as `torch.cuda.memory_stats()` does."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Level:
    """A quantity over time; all in bytes or counts."""

    current: int = 0
    peak: int = 0

    def add(self, amount: int) -> None:
        """Move the current value; the peak follows."""
        self.current += amount
        if self.current > self.peak:
            self.peak = self.current


@dataclass(slots=True)
class Statistics:
    """What `torch.cuda.memory_stats()` counts, over both pools; bytes unless the name says otherwise.

    `active` blocks are allocated or wait for another stream. `inactive_split` is free memory in segments which are
    partly in use; expandable segments do not count there.
    """

    requested: Level = field(default_factory=Level)
    allocated: Level = field(default_factory=Level)
    active: Level = field(default_factory=Level)
    reserved: Level = field(default_factory=Level)
    inactive_split: Level = field(default_factory=Level)
    n_allocated: Level = field(default_factory=Level)
    n_segments: Level = field(default_factory=Level)
    n_inactive_split: Level = field(default_factory=Level)
    n_retries: int = 0
    n_ooms: int = 0
    n_device_allocs: int = 0
    n_device_frees: int = 0
