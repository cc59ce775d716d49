"""Files which are written whole or not at all."""

from __future__ import annotations

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
