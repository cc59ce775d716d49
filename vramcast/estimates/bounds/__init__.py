"""Upper bounds of the process peak: one question, and two who answer it.

`learned.py` knows what an artifact says of jobs like this one, the shipped one among them; `public.py` is what holds where none
covers the job. A bound is built from parts which err apart: the allocator's segments, the context, libraries, and what was
assumed. `parts.py` says what each owes. An estimate holds one `Bound` and asks nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vramcast.estimates.bounds.parts import MarginPart
from vramcast.hardware.context import Context
from vramcast.hardware.device import Device


class Bound(Protocol):
    """What stands above the process peak of one job."""

    @property
    def artifact(self) -> str | None:
        """Name of the artifact behind it; None: there is none."""

    @property
    def is_out_of_distribution(self) -> bool | None:
        """Whether the job is unlike all that it was learned from; None: nothing was learned."""

    def quantile(self, level: float, card: Device, context: Context) -> int:
        """Return the bytes of `card` which the job stays below with probability `level`.

        Args:
            level: In (0, 1).
            card: On which it runs.
            context: What the process takes there besides, as the table has it.
        Raises:
            ValueError: the level is none.
        """

    def method(self, level: float, card: Device) -> tuple[str, int]:
        """Return in words how the bound at `level` was made, and how many runs or models stand behind it."""

    def margin(self, level: float, card: Device, context: Context) -> Sequence[MarginPart]:
        """Return what each part of the margin owes at `level`, largest first, and what would make it smaller."""
