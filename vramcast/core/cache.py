"""The cache and its ownership checks: compiled code to load, and stored answers.

    $VRAMCAST_CACHE, or else ~/.cache/vramcast   searched first
    ~/.cache/vramcast                            the user's own, if the first is read-only

A user who can write here runs code as every user who reads it. A folder, and every file used from it, must therefore belong to
the user or to root and be writable for its owner alone; anything else is rejected. A parent folder may be writable for all if
it is sticky, like /tmp. New files are readable for others as far as the umask allows, and writable only for their owner.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from vramcast.core.errors import CacheError, CompilerError

VARIABLE: Final = "VRAMCAST_CACHE"
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_FOLDER_MODE: Final = 0o755  # minus the umask
_FILE_MODE: Final = 0o644


def cache_folder() -> Path:
    """Return the absolute path of the folder that is searched first; create it if necessary.

    Raises:
        CompilerError: The folder cannot be created.
        CacheError: Other users can write to it.
    """
    chosen = os.environ.get(VARIABLE)
    folder = Path(chosen).absolute() if chosen else _own_folder()
    _make(folder)
    _check_way(folder)
    return folder


def find(name: str) -> Path | None:
    """Return the file or folder of this name; None if it does not exist or cannot be read.

    Raises:
        CompilerError, CacheError: See `cache_folder`; or another user can write to it or its content.
    """
    for folder in _folders():
        if _can_read(folder / name):
            return _checked(folder / name, folder)
    return None


def find_all(pattern: str) -> list[Path]:
    """Return the files and folders that match a pattern of `Path.glob`, without unreadable ones.

    Raises:
        CompilerError, CacheError: See `find`.
    """
    return [_checked(path, folder) for folder in _folders() for path in sorted(folder.glob(pattern)) if _can_read(path)]


def kept(name: str, make: Callable[[Path], object]) -> Path:
    """Return the file or folder of this name; create it atomically if it does not exist.

    Args:
        name: Path within the cache; it must encode everything that determines the content.
        make: Function that writes it to a given path in an empty folder.
    Raises:
        CompilerError: It cannot be written; or `make` raises it.
        CacheError: See `find`.
    """
    if (there := find(name)) is not None:
        return there
    target = _writable_folder() / name
    try:
        _make(target.parent)
        # Two processes may create it at the same time: each uses its own folder, and one rename wins.
        with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as work:
            made = Path(work) / target.name
            make(made)
            _close(made)
            try:
                made.rename(target)
            except OSError:
                if find(name) is None:
                    raise
    except OSError as error:
        raise CompilerError(f"{target} cannot be written ({error}): set {VARIABLE} to a folder with 10 MiB free.") from None
    return target


def record(name: str) -> Path:
    """Return the path of an append-only file: an existing one, which may be read-only, or else a new empty one.

    Raises:
        CompilerError: It cannot be written.
        CacheError: See `find`.
    """
    return find(name) or writable_record(name)


def writable_record(name: str) -> Path:
    """Return the path of a writable append-only file; see `record`."""
    folder = _writable_folder()
    path = folder / name
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, _FILE_MODE))
    except OSError as error:
        raise _no_place(path, error) from None
    return _checked(path, folder)


def folder(name: str) -> Path:
    """Return a writable folder that a library fills by itself; create it if necessary.

    Raises:
        CompilerError: It cannot be written.
        CacheError: See `find`; the content of the folder is not checked.
    """
    base = _writable_folder()
    path = base / name
    _make(path)
    for one in (path, *path.relative_to(base).parents):
        _check(base / one)
    return path


# ------------------------------------------------------------------------------------------------ folders
def _own_folder() -> Path:
    try:
        return (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vramcast").absolute()
    except RuntimeError:  # neither $HOME nor an entry for this user
        raise CompilerError(f"Your home folder is unknown, so there is no place for a cache: set {VARIABLE}.") from None


def _folders() -> Iterator[Path]:
    first = cache_folder()
    yield first
    if not _can_write(first):
        try:
            own = _own_folder()
        except CompilerError:
            return
        if own != first and _can_read(own):
            _check_way(own)
            yield own


def _writable_folder() -> Path:
    """Return the folder for new files."""
    first = cache_folder()
    if _can_write(first):
        return first
    own = _own_folder()
    if own == first:
        raise _no_place(first, "it is read-only for you")
    _make(own)
    _check_way(own)
    return own


def _make(folder: Path) -> None:
    """Create a folder and its parents; existing ones are unchanged."""
    try:
        for one in (*reversed(folder.parents), folder):
            if not one.is_dir():
                os.makedirs(one, _FOLDER_MODE, exist_ok=True)
    except OSError as error:
        raise _no_place(folder, error) from None


def _no_place(path: Path, reason: object) -> CompilerError:
    return CompilerError(f"The cache {path} cannot be made or written ({reason}): set {VARIABLE} to a writable folder.")


def _can_write(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _can_read(path: Path) -> bool:
    return os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0))


# ------------------------------------------------------------------------------------------------ ownership
def _check_way(folder: Path) -> None:
    """Reject a cache folder that other users can write to or replace."""
    _check(folder)
    real = folder.resolve()
    _check(real)
    for above in real.parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise CacheError(
                f"The cache {folder} is not used: any user can replace it, because {above} is writable for all "
                f"({stat.filemode(mode)}). Set {VARIABLE} to a folder of your own."
            )


def _checked(path: Path, base: Path) -> Path:
    """Return `path` in the cache folder `base`, or reject it for its own mode, its parents' or its content's."""
    for above in path.relative_to(base).parents:
        _check(base / above)
    _check(path)
    for folder, folders, files in () if path.is_symlink() else os.walk(path):
        for name in (*folders, *files):
            _check(Path(folder, name))
    return path


def _check(path: Path) -> None:
    """Reject a file that another user owns or can write to. For a link only the owner counts: its mode is meaningless."""
    if sys.platform == "win32":  # its folders have no such modes
        return
    found = path.lstat()
    if found.st_uid not in (0, os.geteuid()):
        reason, remedy = f"it belongs to user {found.st_uid}", "Delete it"
    elif found.st_mode & _OTHERS_WRITE and not stat.S_ISLNK(found.st_mode):
        reason = f"others can write to it ({stat.filemode(found.st_mode)})"
        remedy = "Delete it (or, if you trust its content, chmod -R go-w)"
    else:
        return
    raise CacheError(
        f"The cache {path} is not used: {reason}, and its code would run as you. {remedy}, or set {VARIABLE} to a folder of "
        "your own."
    )


def _close(made: Path) -> None:
    """Remove write permission from all but the owner: with a umask of 002, a compiler gives it to the group."""
    made.chmod(stat.S_IMODE(made.stat().st_mode) & ~_OTHERS_WRITE)
    for folder, folders, files in os.walk(made):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS_WRITE)
