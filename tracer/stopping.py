"""Stops a training command from outside, so that what was seen of it counts: after a time, or when its user has enough."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from vramcast.tracer.course import Course

# A signal which nobody uses: a handler runs in the main thread, also while that waits for something.
STOP: Final = signal.SIGRTMIN + 9  # arbitrary: glibc takes the first two, schedulers and trainers use the named ones
_GRACE: Final = 0.1  # arbitrary: of the limit, to come to a place where nothing is half done


@contextmanager
def stoppable(
    course: Course, limit_s: float | None, *, left_s: float | None = None, first: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Let STOP, or the end of the time, end the job which runs inside by `StopJob`.

    Args:
        course: Of the job.
        limit_s: Seconds; None: as many as it takes.
        left_s: What is left of them; None: all.
        first: Is called before STOP ends the job.
    """
    main = threading.get_ident()
    timers: list[threading.Timer] = []

    def stop(number: int, frame: Any) -> None:
        first()
        course.stop_at_once("its user stopped it")

    def at_once() -> None:
        signal.pthread_kill(main, STOP)

    signal.signal(STOP, stop)
    if limit_s is not None:
        late = f"its time was up after {limit_s:.0f} s: raise the limit (--timeout)"
        left_s = limit_s if left_s is None else max(left_s, 0.0)
        timers = [threading.Timer(left_s * (1 - _GRACE), course.stop, [late]), threading.Timer(left_s, at_once)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        signal.signal(STOP, signal.SIG_IGN)
        for timer in timers:
            timer.cancel()
