"""What the command line does when it is told to end: it leaves the way an exception does, so that what it opened is closed.

Worker, job and cuDNN oracle would notice in any case: they end when their caller is no more, also after SIGKILL.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from vramcast.cli.streams import say
from vramcast.core.errors import NothingAsked, TimeLimit, WorkerError

_SIGNALS = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
_told: list[int] = []


def end_orderly() -> None:
    """Let SIGTERM and SIGHUP raise SystemExit; what nohup ignores stays ignored."""
    atexit.register(_end_now)  # as the last of all, if it is the first which is registered
    for name in _SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)


@contextmanager
def first_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first Ctrl-C while what is inside runs; the second one interrupts it as ever.

    Raises:
        KeyboardInterrupt: what was stopped had nothing to tell yet; an error of its own is told.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return

    told = False

    def stopped(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True
        signal.signal(number, before)
        say("vramcast: stopping, with what was seen so far; once more to leave")
        stop()

    signal.signal(signal.SIGINT, stopped)
    try:
        yield
    except (NothingAsked, WorkerError) as error:
        if told and not isinstance(error, TimeLimit):
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # told twice, it ends at once
    _told.append(number)
    raise SystemExit(128 + number)


def _end_now() -> None:
    """Leave out what the interpreter does at its end, which takes seconds beside large libraries on a busy machine."""
    if _told:
        os._exit(128 + _told[0])
