"""Atomic writes of files, and hashes of their content."""

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
    """Open a file that replaces `path` if the block succeeds, and is removed if it fails.

    Args:
        path: The file to replace. A device or a pipe is written in place.
        raises: Error class for an OSError, also of the block.
    """
    target = Path(path)
    # A device or a pipe, such as /dev/full, must not be replaced.
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
    """Return the SHA-256 of a file in hexadecimal digits; "" if there is no file."""
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*parts: str, digits: int = 16) -> str:
    """Return a hash of some texts, with up to 64 hexadecimal digits."""
    return hashlib.sha256("\n".join(parts).encode(errors="replace")).hexdigest()[:digits]
