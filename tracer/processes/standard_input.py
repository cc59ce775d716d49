"""The standard input of a training command: what its caller's own is, and in each of its runs the same.

    a file                       opened anew, where the caller's stands
    a pipe whose writer is done  copied; the pipe stays as it is, so a shell that reads its own script from it goes on
    another pipe, a socket       as it is: the job waits as it would without us, and a further run finds what is left
    a terminal, none             empty: nobody would know that a job behind a bar waits for an answer

No run takes anything away from a file, or from a pipe that is copied.
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
    """Return a new descriptor of what one run reads; None: nothing."""
    if sys.__stdin__ is None:  # it was closed when we began, and its number is some other file's now
        return None
    try:
        kind = os.fstat(0).st_mode
        if stat.S_ISREG(kind):
            return _opened_anew()
        if stat.S_ISFIFO(kind):
            return _copied() or os.dup(0)
        return os.dup(0) if stat.S_ISSOCK(kind) else None
    except OSError:  # it is closed, or cannot be read
        return None


def _opened_anew() -> int:
    found = os.open(_CALLERS, os.O_RDONLY | os.O_CLOEXEC)
    os.lseek(found, os.lseek(0, 0, os.SEEK_CUR), os.SEEK_SET)
    return found


def _copied() -> int | None:
    """Return a pipe with all that is in the caller's, which keeps it; None: more may come."""
    poll = select.poll()
    poll.register(0, 0)
    if not poll.poll(0):  # spec: poll(2), POLLHUP comes unasked when no writer is left
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
