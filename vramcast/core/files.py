"""Files that are written whole or not at all, and names for what is in them."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from vramcast.core.errors import OutputError, VramcastError


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, raises: type[VramcastError] = OutputError) -> Iterator[BinaryIO]:
    """Open a file which takes the place of `path` when the block ends well, and leaves no trace when it does not.

    Args:
        path: A device or a pipe is written where it stands.
        raises: What an OSError becomes, also one of the block.
    """
    target = Path(path)
    # Nothing may take the place of a device or a pipe, least of all that of /dev/full.
    in_place = target.exists() and not target.is_file()
    temporary = target if in_place else target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb" if in_place else "xb") as file:
            yield file
            file.flush()
            if not in_place:
                os.fsync(file.fileno())
        if not in_place:
            os.replace(temporary, target)
    except OSError as error:
        raise raises(f"'{path}' cannot be written: {error.strerror}. Choose another path.") from error
    finally:
        if not in_place:
            temporary.unlink(missing_ok=True)


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file in hexadecimal digits; "" where there is none."""
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*parts: str, digits: int = 16) -> str:
    """Return so many hexadecimal digits, 64 at most, that name these texts."""
    return hashlib.sha256("\n".join(parts).encode(errors="replace")).hexdigest()[:digits]
