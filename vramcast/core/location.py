"""The location of this package, and the folder from which other processes import it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from vramcast.core.cache import kept
from vramcast.core.errors import CacheError, CompilerError

FOLDER: Final = Path(__file__).parents[1]


def checkout_root() -> Path | None:
    """Return the root of the checkout of vramcast; None if it is installed."""
    return FOLDER.parent if (FOLDER.parent / "pyproject.toml").is_file() else None


def import_root() -> Path:
    """Return a folder for the import path of other processes.

    A checkout's root would work, but its other folders would be mistaken for packages: a job that tests for Hugging Face's
    `datasets` would find ours. The folder therefore contains only a link to the package.

    Raises:
        CacheError: The folder contains more than that link.
    """
    if checkout_root() is None:
        return FOLDER.parent
    name = FOLDER.name

    def make(links: Path) -> None:
        links.mkdir()
        (links / name).symlink_to(FOLDER, target_is_directory=True)

    try:
        links = kept(f"import/{hashlib.sha256(str(FOLDER).encode()).hexdigest()[:16]}", make)
    except CompilerError:  # links cannot be made (a read-only home, Windows without the permission)
        return FOLDER.parent
    # It is first on the path of every worker, so nothing else may be importable from it, such as a sitecustomize.py.
    if os.listdir(links) != [name] or os.readlink(links / name) != str(FOLDER):
        raise CacheError(f"The cache {links} is not used because it contains more than a link to {FOLDER}: delete it.")
    return links
