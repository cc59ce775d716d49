"""A job which ran out of GPU memory is queued again, with a larger request each time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from vramcast.core.checks import whole
from vramcast.schedulers.request import Request, Sizing, request_of

# spec: torch 2.6 to 2.13, c10/cuda/CUDACachingAllocator.cpp: what `torch.OutOfMemoryError` says of a card
_TORCHS_WORDS: Final = "CUDA out of memory"
ATTEMPTS: Final = 3  # arbitrary: with growth by half, 1 GiB becomes 2.25 GiB
# Clusters tell the end of a job in a thread of their own, which must not wait for them: jobs are queued again by this one.
_queueing: Final = ThreadPoolExecutor(1, thread_name_prefix="vramcast-retry")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether a job failed because its card was full; not so, where the machine's own memory was.

    A cluster's error has the job's own as its `cause`, or one which it was raised from.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        # Without importing torch, which the submitting machine may lack.
        is_torchs = any(
            kind.__name__ == "OutOfMemoryError" and kind.__module__.startswith("torch") for kind in type(error).__mro__
        )
        if is_torchs or (isinstance(error, RuntimeError) and _TORCHS_WORDS in str(error)):
            return True
        cause = getattr(error, "cause", None)
        error = cause if isinstance(cause, BaseException) else error.__cause__
    return False


def retried(
    start: Callable[[Request], Future[Any]],
    request: Request,
    *,
    attempts: int = ATTEMPTS,
    on_retry: Callable[[Request, Request], None] | None = None,
) -> Future[Any]:
    """Return the future result of a job, which is started again with a larger request whenever it runs out of memory.

    Args:
        start: Queues the job. It must be one which can run twice, as for the clusters' own retries.
        request: The first one.
        attempts: How often it is started, at most; the last one asks for the whole card. Other errors are the job's answer.
        on_retry: Told the request which was too small, and the next one, before the job is queued again.
    Raises:
        UsageError: `attempts` is below 1.
        Exception: whatever `start` raises for the first request: it was not queued.
    """
    most = whole("attempts", attempts, least=1)
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()  # whoever wants to cancel asks the cluster

    def begin(request: Request) -> None:
        start(request).add_done_callback(lambda ended: _queueing.submit(end, request, ended))

    def end(request: Request, ended: Future[Any]) -> None:
        try:
            outcome.set_result(ended.result())
        except BaseException as error:
            following = _next(request, most) if is_out_of_memory(error) else None
            if following is None:
                outcome.set_exception(error)
                return
            try:
                if on_retry is not None:
                    on_retry(request, following)
                begin(following)
            except BaseException as refused:
                outcome.set_exception(refused)

    begin(request)
    return outcome


def _next(request: Request, most: int) -> Request | None:
    """Return the next request of a job which may have so many; the last one is for the whole card."""
    larger = request.larger()
    if larger is None or larger.attempt > most:
        return None
    return larger.whole_card() if larger.attempt == most else larger


@dataclass(eq=False)
class SizedTask:
    """A function whose calls run on a cluster, each with the memory that its estimate asks for.

    Attributes:
        function: What runs.
        sizing: An estimate, a request, or a function of the call's arguments which returns one. It runs where the task is
            submitted.
        attempts: How often `submit` starts a call, at most.
        may_grow: Whether more may still join the cluster, so that no job is refused for what it lacks.
        on_retry: As for `retried`.
    """

    function: Any
    sizing: Sizing
    _: KW_ONLY
    attempts: int = ATTEMPTS
    may_grow: bool = False
    on_retry: Callable[[Request, Request], None] | None = None

    def request(self, *arguments: Any, **named: Any) -> Request:
        """Return what a call asks for.

        Raises:
            RequestRefused: it fits on no card.
        """
        return request_of(self.sizing, arguments, named)

    def started(self, start: Callable[[Request], Future[Any]], request: Request) -> Future[Any]:
        """Return the future result of a call, which `start` queues."""
        return retried(start, request, attempts=self.attempts, on_retry=self.on_retry)
