"""Signals of the command line: SIGTERM and SIGHUP end it like an exception, so that everything it opened is closed.

Worker, job and cuDNN oracle would end in any case: they notice the death of their caller, also after SIGKILL.
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

from vramcast.core import progress
from vramcast.core.errors import NothingAsked, TimeLimit, WorkerError

_SIGNALS = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
_told: list[int] = []


def end_orderly() -> None:
    """Make SIGTERM and SIGHUP raise SystemExit; a signal that nohup ignores stays ignored."""
    atexit.register(_end_now)  # runs last of all, if it is registered first
    for name in _SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)


@contextmanager
def first_interrupt(stop: Callable[[], bool]) -> Iterator[None]:
    """Call `stop` at the first Ctrl-C in the block; let a second one interrupt as usual, or the first if `stop` returns False.

    Raises:
        KeyboardInterrupt: The stopped job has no result yet; any other error of the block takes precedence.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return

    was_stopped = False

    def stopped(number: int, frame: FrameType | None) -> None:
        nonlocal was_stopped
        was_stopped = True
        signal.signal(number, before)
        if not stop():
            raise KeyboardInterrupt
        progress.listener.output(b"vramcast: stopping; the estimate covers the steps so far; press Ctrl-C again to quit\n")

    signal.signal(signal.SIGINT, stopped)
    try:
        yield
    except (NothingAsked, WorkerError) as error:
        if was_stopped and not isinstance(error, TimeLimit):
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # a second signal ends it at once
    _told.append(number)
    raise SystemExit(128 + number)


def _end_now() -> None:
    """Skip the interpreter's own cleanup, which takes seconds with large libraries on a busy machine."""
    if _told:
        os._exit(128 + _told[0])
