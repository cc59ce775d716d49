"""Stop of a training command from outside, keeping the observations so far.

The reasons are a time limit, an interrupt by the user, and, for one rank of several, waiting for absent ranks.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from vramcast.core.process_tree import descendants, running
from vramcast.tracer.format.trace import INTERRUPTED, TIME_UP
from vramcast.tracer.program.training_loop import Course
from vramcast.tracer.protocol.source_places import stack_of, users_place

# An otherwise unused signal: a handler runs in the main thread, even while that waits.
STOP: Final = signal.SIGRTMIN + 9  # arbitrary: glibc takes the first two, schedulers and trainers use the named ones
_IDLE_S: Final = 20.0  # arbitrary: a rank waiting for absent ranks is reported within half a minute
_IDLE_SHARE: Final = 0.02  # arbitrary: share of a core; a loop polling for a file ten times a second takes less
_LOOK_S: Final = 1.0  # arbitrary
_GRACE: Final = 0.1  # arbitrary: share of the limit, to reach a safe place to stop


@contextmanager
def stoppable(
    course: Course, limit_s: float | None, *, left_s: float | None = None, first: Callable[[], None] = lambda: None,
    has_absent: bool = False,
) -> Iterator[None]:  # fmt: skip
    """Let STOP, or the time limit, end the job inside the context with `StopJob`.

    Args:
        course: The job's course.
        limit_s: Seconds; None: no limit.
        left_s: Seconds left of the limit; None: all.
        first: Called before STOP ends the job.
        has_absent: Whether there are other ranks, for which the job may wait forever.
    """
    main = threading.get_ident()
    timers: list[threading.Timer] = []
    ended = threading.Event()
    idle_at: list[float] = []  # when the job was last found idle and was signaled

    def stop(number: int, frame: Any) -> None:
        why = INTERRUPTED
        if idle_at:
            if time.monotonic() - idle_at.pop() > _LOOK_S:
                return  # it was in a call that has ended now: a query of cuDNN in another process
            why = f"it waited {_IDLE_S:.0f} s for another rank, which does not exist, in {users_place(stack_of(frame))}"
        first()
        course.stop_at_once(why)

    def at_once() -> None:
        signal.pthread_kill(main, STOP)

    signal.signal(STOP, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP})  # the worker blocks it
    if limit_s is not None:
        late = f"{TIME_UP} after {limit_s:.0f} s: raise the limit (--timeout)"
        left_s = limit_s if left_s is None else max(left_s, 0.0)
        timers = [threading.Timer(left_s * (1 - _GRACE), course.stop, [late]), threading.Timer(left_s, at_once)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    if has_absent:
        threading.Thread(target=_look, args=(main, ended, idle_at), daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        signal.signal(STOP, signal.SIG_IGN)
        for timer in timers:
            timer.cancel()


def _look(main: int, ended: threading.Event, idle_at: list[float]) -> None:
    """Signal the main thread when neither the job nor its child processes have used a core for some time."""
    since, used_s = time.monotonic(), _used_s()
    while not ended.wait(_LOOK_S):
        now, now_used_s = time.monotonic(), _used_s()
        if now_used_s - used_s > _IDLE_SHARE * _IDLE_S:
            since, used_s = now, now_used_s
        elif now - since > _IDLE_S and not idle_at:
            idle_at.append(now)
            signal.pthread_kill(main, STOP)
            since, used_s = now, now_used_s


def _used_s() -> float:
    """Return the core seconds used by this process and its living descendants."""
    ours, found = {os.getpid(), *descendants(os.getpid())}, running()
    return sum(found[number].ticks for number in ours & found.keys()) / os.sysconf("SC_CLK_TCK")
