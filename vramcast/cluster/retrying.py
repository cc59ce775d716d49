"""Retries of a job that ran out of GPU memory, each with a larger request."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from vramcast.cluster.request import Request, Sizing, request_of
from vramcast.core.checks import whole

# spec: torch 2.6 to 2.13, c10/cuda/CUDACachingAllocator.cpp: the text of `torch.OutOfMemoryError`
_TORCHS_WORDS: Final = "CUDA out of memory"
ATTEMPTS: Final = 3  # arbitrary: with growth by half, 1 GiB becomes 2.25 GiB
# Clusters report the end of a job in a thread of their own, which must not wait for them: this pool queues jobs again.
_queueing: Final = ThreadPoolExecutor(1, thread_name_prefix="vramcast-retry")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether a job failed because its card was full, as opposed to the machine's main memory.

    A cluster's error has the job's error as its `cause`, or was raised from it.
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
        start: Queues the job, which must be safe to run twice, as for the clusters' own retries.
        request: The first request.
        attempts: Maximum number of starts; the last one requests the whole card. Other errors are returned as the job's
            result.
        on_retry: Called with the request that was too small and the next one, before the job is queued again.
    Raises:
        UsageError: `attempts` is below 1.
        Exception: Any error of `start` for the first request; the job was not queued.
    """
    most = whole("attempts", attempts, least=1)
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()  # to cancel the job, use the cluster

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
    """Return the next request of a job with at most this number of attempts; the last one is for the whole card."""
    larger = request.larger()
    if larger is None or larger.attempt > most:
        return None
    return larger.whole_card() if larger.attempt == most else larger


@dataclass(eq=False)
class SizedTask:
    """A function whose calls run on a cluster, each with the memory from its estimate.

    Attributes:
        function: The function to run.
        sizing: An estimate, a request, or a function of the call's arguments that returns one. It runs on the submitting
            machine.
        attempts: Maximum number of times that `submit` starts a call.
        may_grow: Whether larger nodes may still join the cluster, so that no job is refused because they are missing now.
        on_retry: See `retried`.
    """

    function: Any
    sizing: Sizing
    _: KW_ONLY
    attempts: int = ATTEMPTS
    may_grow: bool = False
    on_retry: Callable[[Request, Request], None] | None = None

    def request(self, *arguments: Any, **named: Any) -> Request:
        """Return the request of a call.

        Raises:
            RequestRefused: It fits on no card.
        """
        return request_of(self.sizing, arguments, named)

    def started(self, start: Callable[[Request], Future[Any]], request: Request) -> Future[Any]:
        """Return the future result of a call that `start` queues."""
        return retried(start, request, attempts=self.attempts, on_retry=self.on_retry)
