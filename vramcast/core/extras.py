"""Packages that only some commands need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from vramcast.core.errors import UsageError, VramcastError


def installed(name: str) -> str | None:
    """Return the version of an installed distribution; None: there is none of this name."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@contextmanager
def needed(what: str, extra: str, *, raises: type[VramcastError] = UsageError) -> Iterator[None]:
    """Say what to install where an import inside the block fails.

    Args:
        what: Needs it; at the beginning of a sentence: "Training".
        extra: Of vramcast, that brings the package.
        raises: What an ImportError becomes.
    """
    try:
        yield
    except ImportError as error:
        raise raises(f"{what} needs {error.name or error}: pip install 'vramcast[{extra}]'.") from None
