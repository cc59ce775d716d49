"""What the command line writes: answers on stdout, everything else on stderr, whatever these two are.

They may be closed, full, a pipe that has no reader any more, or of an encoding that cannot show a name. An answer which
cannot be written is an error; a message which cannot be written is not. Whoever stops reading (`| head`) has what they
wanted of the text, and still gets the exit code.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from vramcast.core.errors import OutputError


def secure() -> None:
    """Open on nothing what the caller closed, so that no file or socket of ours takes its number; once, before all else."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number, which is `fd`
    if sys.stderr is None:  # print(file=None) would write on stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 (as long as we live)


def require_stdout() -> None:
    """Raise where nothing could be answered, before hours are spent on the answer.

    Raises:
        OutputError: stdout is closed.
    """
    if sys.stdout is None:
        raise OutputError("stdout is closed, where the answer goes: redirect it to a file or to /dev/null.")


def answer(text: str, *, end: str = "\n") -> None:
    """Write `text` on stdout, at once; characters which it cannot show become question marks.

    Raises:
        OutputError: it cannot be written.
    """
    require_stdout()
    try:
        print(_showable(text, sys.stdout), end=end, flush=True)
    except BrokenPipeError:
        _abandon(sys.stdout)
    except (OSError, ValueError) as error:
        _abandon(sys.stdout)
        raise OutputError(f"The answer cannot be written on stdout ({error}): redirect it to a place with room.") from None


def answer_as(is_json: bool, values: Any, text: Callable[[], str]) -> None:
    """Answer with one JSON object, or with text for people. Raises: see `answer`."""
    answer(json.dumps(values) if is_json else text())


def say(text: str, *, end: str = "\n") -> None:
    """Write a message on stderr, if that is possible; likewise."""
    try:
        print(_showable(text, sys.stderr), end=end, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _abandon(sys.stderr)


def _showable(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _abandon(stream: TextIO) -> None:
    """Lead a stream nowhere: what it still holds is not tried again when the interpreter ends."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):  # no file behind it
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)
