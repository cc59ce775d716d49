"""What decides an answer besides its question: settings, versions, our own code, and the artifact."""

from __future__ import annotations

import hashlib
from typing import Final

from vramcast.estimates.bounds.learned import SHIPPED, chosen, named
from vramcast.estimates.run_examples import decides_all, digest

_FILE: Final = "artifact.json"


def answered_by(artifact: str | None) -> str:
    """Return a digest of all that, for the keys of kept answers.

    Raises:
        UsageError: the artifact is none.
    """
    path = (chosen(artifact) or named(SHIPPED)) / _FILE
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
    return digest([*decides_all(), str(artifact), content])
