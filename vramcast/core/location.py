"""Where this package lies, and the folder from which other processes import it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from vramcast.core.cache import kept
from vramcast.core.errors import CacheError, CompilerError

FOLDER: Final = Path(__file__).parents[1]


def checkout_root() -> Path | None:
    """Return the root of the checkout that vramcast is imported from; None: it is installed."""
    return FOLDER.parent if (FOLDER.parent / "pyproject.toml").is_file() else None


def import_root() -> Path:
    """Return a folder on whose path vramcast is found.

    A checkout's root would do, but its folders would then pass for packages: to a job that looks whether Hugging Face's
    `datasets` is installed, ours would seem to be it. So the folder has a link to the one package in it.

    Raises:
        CacheError: The folder has more in it than that link.
    """
    if checkout_root() is None:
        return FOLDER.parent
    name = FOLDER.name

    def make(links: Path) -> None:
        links.mkdir()
        (links / name).symlink_to(FOLDER, target_is_directory=True)

    try:
        links = kept(f"import/{hashlib.sha256(str(FOLDER).encode()).hexdigest()[:16]}", make)
    except CompilerError:  # no place for links (a read-only home, Windows without the right)
        return FOLDER.parent
    # It comes first on the path of every worker: nothing else may be imported from it (a sitecustomize.py, say).
    if os.listdir(links) != [name] or os.readlink(links / name) != str(FOLDER):
        raise CacheError(f"The cache {links} is not used: it has more in it than a link to {FOLDER}. Delete it.")
    return links
