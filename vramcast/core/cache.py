"""What is kept between runs, and whose it may be: compiled code which is loaded, and answers which are believed.

    $VRAMCAST_CACHE, else ~/.cache/vramcast      looked into first
    ~/.cache/vramcast                            the user's own, where the first is somebody's who only lets us read

Whoever can write here runs code as everybody who reads. So a folder, and all in it that is used, must belong to the user or to
root, and nobody else may write to it: anything else is refused. A folder above may be open to all if it is sticky, as /tmp is.
What is made here is readable for others as far as the umask lets it, and writable for its owner alone.
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
_FOLDER_MODE: Final = 0o755  # less the umask
_FILE_MODE: Final = 0o644


def cache_folder() -> Path:
    """Return the folder which is looked into first, absolute; made where it is not there.

    Raises:
        CompilerError: it cannot be made.
        CacheError: others can write to it.
    """
    chosen = os.environ.get(VARIABLE)
    folder = Path(chosen).absolute() if chosen else _own_folder()
    _make(folder)
    _check_way(folder)
    return folder


def find(name: str) -> Path | None:
    """Return the file or folder of this name, with all in it; None where it is not there, or cannot be read.

    Raises:
        CompilerError, CacheError: see `cache_folder`; also where somebody else can write to what is there.
    """
    for folder in _folders():
        if _can_read(folder / name):
            return _checked(folder / name, folder)
    return None


def find_all(pattern: str) -> list[Path]:
    """Return all which match a pattern of `Path.glob`, with all in them; those which cannot be read are left out.

    Raises:
        CompilerError, CacheError: see `find`.
    """
    return [_checked(path, folder) for folder in _folders() for path in sorted(folder.glob(pattern)) if _can_read(path)]


def kept(name: str, make: Callable[[Path], object]) -> Path:
    """Return the file or folder of this name, made if it is not there. It appears whole or not at all.

    Args:
        name: May have folders in it; says everything which decides the content.
        make: Writes it to the path that it is given, in an empty folder.
    Raises:
        CompilerError: there is no place for it; besides what `make` raises.
        CacheError: see `find`.
    """
    if (there := find(name)) is not None:
        return there
    target = _writable_folder() / name
    try:
        _make(target.parent)
        # Two processes may make it at once: each in a folder of its own, and one rename wins.
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
    """Return the path of a file which grows: where it is already, perhaps only to be read, else a new one, empty.

    Raises:
        CompilerError: there is no place for it.
        CacheError: see `find`.
    """
    return find(name) or writable_record(name)


def writable_record(name: str) -> Path:
    """Return the path of a file which grows and which we can write to; see `record`."""
    folder = _writable_folder()
    path = folder / name
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, _FILE_MODE))
    except OSError as error:
        raise _no_place(path, error) from None
    return _checked(path, folder)


def folder(name: str) -> Path:
    """Return a folder which a library fills by itself, writable for us; made if it is not there.

    Raises:
        CompilerError: there is no place for it.
        CacheError: see `find`; what is in it is not looked at.
    """
    base = _writable_folder()
    path = base / name
    _make(path)
    for one in (path, *path.relative_to(base).parents):
        _check(base / one)
    return path


# ------------------------------------------------------------------------------------------------ where
def _own_folder() -> Path:
    try:
        return (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vramcast").absolute()
    except RuntimeError:  # neither $HOME nor an entry for this user
        raise CompilerError(f"Your home folder is not known, so there is no place for a cache: set {VARIABLE}.") from None


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
    """Return the folder for what is new."""
    first = cache_folder()
    if _can_write(first):
        return first
    own = _own_folder()
    if own == first:
        raise _no_place(first, "you may only read it")
    _make(own)
    _check_way(own)
    return own


def _make(folder: Path) -> None:
    """Make a folder and those above; those which are there stay as they are."""
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


# ------------------------------------------------------------------------------------------------ whose
def _check_way(folder: Path) -> None:
    """Refuse a cache folder which others can write to, or exchange."""
    _check(folder)
    real = folder.resolve()
    _check(real)
    for above in real.parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise CacheError(
                f"The cache {folder} is not used: everybody can exchange it, as {above} is open to all "
                f"({stat.filemode(mode)}). Set {VARIABLE} to a folder of your own."
            )


def _checked(path: Path, base: Path) -> Path:
    """Return `path`, which lies in the cache folder `base`, or refuse it for itself, what is above and what is in it."""
    for above in path.relative_to(base).parents:
        _check(base / above)
    _check(path)
    for folder, folders, files in () if path.is_symlink() else os.walk(path):
        for name in (*folders, *files):
            _check(Path(folder, name))
    return path


def _check(path: Path) -> None:
    """Refuse what somebody else owns or can write to. Of a link the owner alone counts: its mode says nothing."""
    if sys.platform == "win32":  # whose folders have no such modes
        return
    found = path.lstat()
    if found.st_uid not in (0, os.geteuid()):
        reason, remedy = f"it belongs to user {found.st_uid}", "Delete it"
    elif found.st_mode & _OTHERS_WRITE and not stat.S_ISLNK(found.st_mode):
        reason = f"others can write to it ({stat.filemode(found.st_mode)})"
        remedy = "Delete it (or, if you trust what is in it, chmod -R go-w)"
    else:
        return
    raise CacheError(
        f"The cache {path} is not used: {reason}, and what is in it runs as you. {remedy}, or set {VARIABLE} to a folder of "
        "your own."
    )


def _close(made: Path) -> None:
    """Take the right to write from all but the owner: with a umask of 002 a compiler gives it to the group."""
    made.chmod(stat.S_IMODE(made.stat().st_mode) & ~_OTHERS_WRITE)
    for folder, folders, files in os.walk(made):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS_WRITE)
