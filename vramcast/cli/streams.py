"""Output of the command line: answers on stdout, everything else on stderr.

Either stream may be closed, full, a pipe without a reader, or of an encoding that lacks a character. An answer that cannot
be written is an error; a message that cannot be written is not. A reader that closes the pipe (`| head`) has all the text
it wanted, and the exit code is unchanged.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from vramcast.core.errors import OutputError


def secure() -> None:
    """Open closed standard streams on the null device, so that no file or socket takes their numbers; call it first."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number, which is `fd`
    if sys.stderr is None:  # print(file=None) would write on stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 (as long as we live)


def require_stdout() -> None:
    """Raise if no answer can be written, before hours go into it.

    Raises:
        OutputError: stdout is closed.
    """
    if sys.stdout is None:
        raise OutputError("stdout is closed, so that the answer cannot be written: redirect it to a file or to /dev/null.")


def answer(text: str, *, end: str = "\n") -> None:
    """Write `text` on stdout at once; characters that it cannot show become question marks.

    Raises:
        OutputError: It cannot be written.
    """
    require_stdout()
    try:
        print(_showable(text, sys.stdout), end=end, flush=True)
    except BrokenPipeError:
        _abandon(sys.stdout)
    except (OSError, ValueError) as error:
        _abandon(sys.stdout)
        raise OutputError(
            f"The answer cannot be written on stdout ({error}): redirect it to a file on a disk with room."
        ) from None


def answer_as(is_json: bool, values: Any, text: Callable[[], str]) -> None:
    """Answer with one JSON object, or with text for people. Raises: see `answer`."""
    answer(json.dumps(values) if is_json else text())


def say(text: str, *, end: str = "\n") -> None:
    """Write a message on stderr if possible, with the same replacement of characters."""
    try:
        print(_showable(text, sys.stderr), end=end, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _abandon(sys.stderr)


def _showable(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _abandon(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that the interpreter does not try its buffer again at exit."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):  # no file behind it
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)
