"""The bound of an artifact: which is in use, and what it says of one estimate.

The process peak holds the context of the stack: the measured one where it is known, else the table's. The rest of a bound is
the artifact's, `vramcast.learner.model`, where those who judge it ask too.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.checks import shown
from vramcast.context import Context
from vramcast.devices import Device
from vramcast.errors import ArtifactError, UsageError

if TYPE_CHECKING:
    from vramcast.learner.model import BoundAtLevel, Learned, Subject
    from vramcast.learner.stacks import StackContext

VARIABLE = "VRAMCAST_ARTIFACT"
SHIPPED = "default"  # the artifact which comes with vramcast: models/default
METHOD = "learned quantile, conformal correction"


@dataclass(frozen=True, slots=True)
class LearnedBound:
    """What an artifact says of one job.

    Attributes:
        artifact: Name of its folder.
        learned: The artifact.
        subject: The job, as the artifact sees it, without a context: that depends on the card.
        libraries: Which it uses, as `vramcast.learner.features.parts_of` names them.
        torch: Version of the torch that runs it, for its stack.
    """

    artifact: str
    learned: Learned
    subject: Subject
    libraries: tuple[str, ...]
    torch: str
    _bounds: dict[tuple[float, int, int, bool], BoundAtLevel] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def bound(self, level: float, card: Device, assumed: Context) -> BoundAtLevel:
        """Return the process peak's bound on a card; an estimate asks for the same few levels again for every card."""
        point, _, high = self.context(card, assumed)
        is_measured = self._measured(card) is not None
        key = (level, point, high, is_measured)
        if key not in self._bounds:
            on_card = replace(self.subject, context=point, spread=high - point, is_measured=is_measured)
            self._bounds[key] = self.learned.process_bound(on_card, level)
        return self._bounds[key]

    @property
    def reserved(self) -> int:
        """The corrected reserved peak, bytes."""
        return self.learned.reserved(self.subject)

    @property
    def is_out_of_distribution(self) -> bool:
        """Whether the job is unlike all that was learned from."""
        return self.learned.is_out_of_distribution(self.subject)

    def context(self, card: Device, assumed: Context) -> tuple[int, int, int]:
        """Return the point, the low and the high end of what the process takes beside, bytes: measured, or as assumed."""
        known = self._measured(card)
        if known is None:
            return assumed.bytes, assumed.low_bytes, assumed.high_bytes
        low, point, high = assumed.added  # stacks are measured with jobs of one rank
        return known.size_bytes + point, known.low_bytes + low, known.high_bytes + high

    def _measured(self, card: Device) -> StackContext | None:
        """Return the context of this card's stack: of one with this torch if there is one, else of that with most runs."""
        of_card = [(name, one) for name, one in self.learned.contexts.items() if one.gpu == card.key]
        best = max(of_card, key=lambda pair: (self.torch in pair[0].split(", "), pair[1].n), default=None)
        return best[1].of(self.libraries) if best is not None else None

    def quantile(self, level: float, card: Device, context: Context) -> int:
        """See `Bound`."""
        if not 0 < level < 1:
            raise ValueError(f"level is {level}: it must lie between 0 and 1, for example 0.99.")
        return self.bound(level, card, context).size_bytes

    def promises(self, level: float) -> bool:
        """Return whether enough models stand behind the artifact's bound at `level`."""
        return self.learned.promises(self.learned.process_bound(self.subject, level))

    def method(self, level: float, card: Device) -> tuple[str, int]:
        """See `Bound`: the count is of models."""
        found = self.learned.process_bound(self.subject, level)
        return f"{METHOD}, calibrated on {found.key}", round(found.n)


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
    from vramcast.learner import artifact

    try:
        return artifact.load(folder)
    except ImportError as error:
        raise ArtifactError(f"The artifact '{folder}' has trees: pip install 'vramcast[learn]' ({error.name}).") from None
