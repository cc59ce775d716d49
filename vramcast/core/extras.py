"""Optional packages, which only some commands need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from vramcast.core.errors import UsageError, VramcastError


def installed(name: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@contextmanager
def needed(what: str, extra: str, *, raises: type[VramcastError] = UsageError) -> Iterator[None]:
    """Turn an ImportError of the block into an error that gives the package to install.

    Args:
        what: Subject of the message, such as "Training".
        extra: The extra of vramcast that includes the package.
        raises: Error class to raise.
    """
    try:
        yield
    except ImportError as error:
        raise raises(f"{what} needs {error.name or error}: pip install '.[{extra}]' in vramcast's checkout.") from None
