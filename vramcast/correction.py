"""A learned correction in use: which artifact, and what it says of one estimate.

quantile(q) = corrected process peak at q + what is unknown

The peak holds the context of the stack: the measured one where it is known, else the table's.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.bound import UNKNOWN_SHARE
from vramcast.checks import shown
from vramcast.context import Context
from vramcast.devices import Device
from vramcast.errors import ArtifactError, UsageError

if TYPE_CHECKING:
    from vramcast.learner.model import Bound, Learned, Subject
    from vramcast.learner.stacks import StackContext

VARIABLE = "VRAMCAST_ARTIFACT"
SHIPPED = "default"  # the artifact which comes with vramcast: models/default
METHOD = "learned quantile, conformal correction"


@dataclass(frozen=True, slots=True)
class Correction:
    """What an artifact says of one job.

    Attributes:
        name: Of the artifact's folder.
        learned: The artifact.
        subject: The job, as the artifact sees it, without a context: that depends on the card.
        libraries: Which it uses, as `vramcast.learner.features.parts_of` names them.
        torch: Version of the torch that runs it, for its stack.
        unknown: Kinds of calls which were assumed or refused; each widens the bound.
    """

    name: str
    learned: Learned
    subject: Subject
    libraries: tuple[str, ...]
    torch: str
    unknown: int
    _bounds: dict[tuple[float, int], Bound] = field(default_factory=dict, init=False, repr=False, compare=False)

    def bound(self, level: float, context_bytes: int) -> Bound:
        """Return the process peak's bound; an estimate asks for the same few levels again for every card."""
        key = (level, context_bytes)
        if key not in self._bounds:
            self._bounds[key] = self.learned.process_bound(replace(self.subject, context=context_bytes), level)
        return self._bounds[key]

    @property
    def reserved(self) -> int:
        """The corrected reserved peak, bytes."""
        return self.learned.reserved(self.subject)

    @property
    def is_unlike(self) -> bool:
        """Whether the job is unlike all that was learned from."""
        return self.learned.is_unlike(self.subject)

    def context(self, card: Device, assumed: Context) -> tuple[int, int, int]:
        """Return the point, the low and the high end of what the process takes beside, bytes: measured, or as assumed."""
        known = self._measured(card)
        if known is None:
            return assumed.bytes, assumed.low_bytes, assumed.high_bytes
        return known.size_bytes, known.low_bytes, known.high_bytes

    def _measured(self, card: Device) -> StackContext | None:
        """Return the context of this card's stack: of one with this torch if there is one, else of that with most runs."""
        of_card = [(name, one) for name, one in self.learned.contexts.items() if one.gpu == card.key]
        best = max(of_card, key=lambda pair: (self.torch in pair[0].split(", "), pair[1].n), default=None)
        return best[1].of(self.libraries) if best is not None else None

    def quantile(self, level: float, card: Device, assumed: Context) -> int:
        """Return the bytes of `card` which the job stays below with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level is {level}: it must lie between 0 and 1, for example 0.99.")
        above = max(level - 0.5, 0.0) / 0.5
        point, _, high = self.context(card, assumed)
        widened = 1 + self.unknown * UNKNOWN_SHARE * above
        # A bound learned from process peaks has seen how a measured context varies, but nothing of one from the table.
        spread = 0 if self.learned.process_head is not None and self._measured(card) is not None else high - point
        process = self.bound(level, point).size_bytes
        return round((process - point) * widened) + point + round(spread * above)

    def calibrated_on(self, level: float) -> tuple[str, int]:
        """Return whose runs the bound at `level` is calibrated on, and how many models they are of."""
        found = self.bound(level, 0)
        return found.key, round(found.n)


def chosen(artifact: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder of the artifact to use: the given one, else $VRAMCAST_ARTIFACT, else None."""
    wanted = artifact if artifact is not None else os.environ.get(VARIABLE) or None
    return named(wanted) if wanted is not None else None


def named(artifact: str | os.PathLike[str]) -> Path:
    """Return the folder of an artifact; `default` is the shipped one, unless there is a folder of that name here."""
    if not isinstance(artifact, str | os.PathLike):
        raise UsageError(f"artifact is {shown(artifact)}: give the folder of one, or '{SHIPPED}'.")
    folder = Path(artifact)
    if folder == Path(SHIPPED) and not folder.exists():
        from vramcast import models

        return Path(next(iter(models.__path__))) / SHIPPED
    return folder


def load(folder: Path) -> Learned:
    """Return the artifact in `folder`; kept in memory until its file changes.

    Raises:
        ArtifactError: it is absent or damaged, or the learner's packages are not installed.
    """
    try:
        stamp = (folder / "artifact.json").stat().st_mtime_ns
    except OSError:
        stamp = 0
    return _load(folder, stamp)


@functools.lru_cache(maxsize=4)
def _load(folder: Path, stamp: int) -> Learned:
    try:
        from vramcast.learner import artifact
    except ImportError as error:
        raise ArtifactError(f"The artifact '{folder}' needs {error.name}: pip install 'vramcast[learn]'.") from None
    return artifact.load(folder)
