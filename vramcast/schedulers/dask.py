"""dask tasks which ask for the GPU memory that they take: bytes of the resource GPU_MEMORY, which each worker has of its card.

    from vramcast.schedulers import dask as sized

    client.register_plugin(sized.CardMemory("a100-40gb"))   # or: dask worker --resources GPU_MEMORY=42297786368
    @sized.task(estimate)                                   # or a function of the call's arguments which returns one
    def train(learning_rate): ...
    train.submit(client, 1e-3).result()                     # queued again with more after it ran out of memory
    with dask.annotate(resources=sized.resources_of(request)): ...   # collections and delayed functions

dask counts, and does not enforce. Needs `pip install 'vramcast[dask]'`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Final

from vramcast.core.errors import RequestRefused
from vramcast.core.extras import needed
from vramcast.core.units import gib
from vramcast.hardware.cards import card_bytes
from vramcast.schedulers.request import Request, Sizing
from vramcast.schedulers.retrying import SizedTask

with needed("vramcast.schedulers.dask", "dask"):
    import distributed
    from distributed import Client, Worker, WorkerPlugin

GPU_MEMORY: Final = "GPU_MEMORY"


class CardMemory(WorkerPlugin):
    """A plugin by which workers say what they have: of one worker a card, its memory as the resource GPU_MEMORY.

    Args:
        card: Its name (`vramcast.devices.DEVICES`) or its size (`"12GiB"`).
    Raises:
        UsageError: no such card.
    """

    name = "vramcast-card-memory"

    def __init__(self, card: str) -> None:
        self.size_bytes = card_bytes(card)

    async def setup(self, worker: Worker) -> None:
        """Tell the worker and its scheduler."""
        await worker.set_resources(**{GPU_MEMORY: self.size_bytes})


def resources_of(request: Request) -> dict[str, int]:
    """Return a request as `resources` of `client.submit` and `dask.annotate`."""
    return {GPU_MEMORY: request.size_bytes}


def refuse_unserved(client: Client, request: Request) -> None:
    """Raise where no worker could ever run the job; dask would let it wait for ever.

    Raises:
        RequestRefused: the message says what the largest worker has.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    largest = int(max((worker["resources"].get(GPU_MEMORY, 0) for worker in workers), default=0))
    if largest < request.size_bytes:
        has = f"have at most {gib(largest)} of '{GPU_MEMORY}'" if largest else f"say no '{GPU_MEMORY}' (register CardMemory)"
        raise RequestRefused(
            f"The job asks for {request}, and the workers of the dask cluster {has}: it is not queued. Start a worker which "
            "has more, or say may_grow=True where the cluster adapts."
        )


class Task(SizedTask):
    """A function whose calls run as dask tasks."""

    def submit(self, client: Client, *arguments: Any, **named: Any) -> Future[Any]:
        """Queue one call, and queue it again with a larger request when it runs out of GPU memory; return its future result.

        Raises:
            RequestRefused: it fits on no card, or on none of the cluster.
        """

        def start(request: Request) -> Future[Any]:
            if not self.may_grow:
                refuse_unserved(client, request)
            # pure=False: a call which failed is another task when it is queued again.
            queued = client.submit(self.function, *arguments, pure=False, resources=resources_of(request), **named)
            return _plain(queued)

        return self.started(start, self.request(*arguments, **named))


def task(sizing: Sizing, **options: Any) -> Callable[[Callable[..., Any]], Task]:
    """Return a decorator which makes a function a `Task`; `options` are those of the class."""
    return lambda function: Task(function, sizing, **options)


def _plain(queued: distributed.Future[Any]) -> Future[Any]:
    """Return a dask future as one of Python's; it keeps the task alive until it has ended."""
    found: Future[Any] = Future()

    def end(ended: distributed.Future[Any]) -> None:
        if ended.cancelled():
            found.set_exception(CancelledError(f"the task {ended.key} was cancelled"))
            return
        try:
            found.set_result(ended.result())
        except BaseException as error:
            found.set_exception(error)

    queued.add_done_callback(end)
    return found
