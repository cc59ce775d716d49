"""What decides an answer besides its question: settings, versions, our own code, and the artifact."""

from __future__ import annotations

from typing import Final

from vramcast.core.files import digest, sha256_of
from vramcast.estimates.bounds.learned import SHIPPED, chosen, named
from vramcast.estimates.run_examples import decides_all

_FILE: Final = "artifact.json"


def answered_by(artifact: str | None) -> str:
    """Return a digest of all that, for the keys of kept answers.

    Raises:
        UsageError: the artifact is none.
    """
    path = (chosen(artifact) or named(SHIPPED)) / _FILE
    return digest(*decides_all(), str(artifact), sha256_of(path), digits=64)
