"""The standard input of a training command: derived from the caller's, and equal in all of its runs.

    a file                       opened again, at the caller's position
    a pipe with a closed writer  copied; the pipe stays as it is, so a shell that reads its own script from it continues
    another pipe, a socket       as it is: the job waits as it would without us, and a further run reads the rest
    a terminal, none             empty: a job waiting for input behind a progress bar would go unnoticed

No run takes anything away from a file, or from a copied pipe.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import stat
import sys
from typing import Final

_CALLERS: Final = "/proc/self/fd/0"


def of_one_run() -> int | None:
    """Return a new descriptor for the input of one run; None: nothing."""
    if sys.__stdin__ is None:  # it was closed at our start, and another file may have its number now
        return None
    try:
        kind = os.fstat(0).st_mode
        if stat.S_ISREG(kind):
            return _opened_anew()
        if stat.S_ISFIFO(kind):
            return _copied() or os.dup(0)
        return os.dup(0) if stat.S_ISSOCK(kind) else None
    except OSError:  # it is closed or unreadable
        return None


def _opened_anew() -> int:
    found = os.open(_CALLERS, os.O_RDONLY | os.O_CLOEXEC)
    os.lseek(found, os.lseek(0, 0, os.SEEK_CUR), os.SEEK_SET)
    return found


def _copied() -> int | None:
    """Return a pipe with a copy of the contents of the caller's pipe; None: more may come."""
    poll = select.poll()
    poll.register(0, 0)
    if not poll.poll(0):  # spec: poll(2), POLLHUP is always reported when no writer is left
        return None
    size_bytes = fcntl.fcntl(0, fcntl.F_GETPIPE_SZ)
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, size_bytes)
        if ctypes.CDLL(None, use_errno=True).tee(0, write, ctypes.c_size_t(size_bytes), ctypes.c_uint(0)) < 0:
            raise OSError(ctypes.get_errno(), "tee")
    except OSError:
        os.close(read)
        return None
    finally:
        os.close(write)
    return read
