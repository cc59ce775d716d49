"""Dask tasks that request GPU memory, as bytes of the resource GPU_MEMORY; each worker offers the memory of its card.

    from vramcast.cluster import dask as sized

    client.register_plugin(sized.CardMemory("a100-40gb"))   # or: dask worker --resources GPU_MEMORY=42297786368
    @sized.task(estimate)                                   # or a function of the call's arguments that returns one
    def train(learning_rate): ...
    train.submit(client, 1e-3).result()                     # queued again with more after it ran out of memory
    with dask.annotate(resources=sized.resources_of(request)): ...   # collections and delayed functions

Dask counts the resource but does not enforce it. Needs `pip install '.[dask]'`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Final

from vramcast.cluster.request import Request, Sizing
from vramcast.cluster.retrying import SizedTask
from vramcast.core.errors import RequestRefused
from vramcast.core.extras import needed
from vramcast.core.units import gib
from vramcast.hardware.cards import card_bytes

with needed("vramcast.cluster.dask", "dask"):
    import distributed
    from distributed import Client, Worker, WorkerPlugin

GPU_MEMORY: Final = "GPU_MEMORY"


class CardMemory(WorkerPlugin):
    """A plugin that registers the memory of a worker's card, of which it must be the only user, as GPU_MEMORY.

    Args:
        card: Name of the card (`vramcast.devices.DEVICES`) or its size (`"12GiB"`).
    Raises:
        UsageError: There is no such card.
    """

    name = "vramcast-card-memory"

    def __init__(self, card: str) -> None:
        self.size_bytes = card_bytes(card)

    async def setup(self, worker: Worker) -> None:
        """Register the resource with the worker and its scheduler."""
        await worker.set_resources(**{GPU_MEMORY: self.size_bytes})


def resources_of(request: Request) -> dict[str, int]:
    """Return a request as `resources` of `client.submit` and `dask.annotate`."""
    return {GPU_MEMORY: request.size_bytes}


def refuse_unserved(client: Client, request: Request) -> None:
    """Raise if no worker could ever run the job; dask would let it wait forever.

    Raises:
        RequestRefused: The message gives the memory of the largest worker.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    largest = int(max((worker["resources"].get(GPU_MEMORY, 0) for worker in workers), default=0))
    if largest < request.size_bytes:
        has = (
            f"have at most {gib(largest)} of '{GPU_MEMORY}'" if largest else (f"offer no '{GPU_MEMORY}' (register CardMemory)")
        )
        raise RequestRefused(
            f"The job requests {request}, but the workers of the dask cluster {has}: it was not queued. Start a worker with "
            "more memory, or pass may_grow=True if the cluster scales up."
        )


class DaskTask(SizedTask):
    """A function whose calls run as dask tasks."""

    def submit(self, client: Client, *arguments: Any, **named: Any) -> Future[Any]:
        """Queue one call, and queue it again with a larger request if it runs out of GPU memory; return its future result.

        Raises:
            RequestRefused: It fits on no card, or on no worker of the cluster.
        """

        def start(request: Request) -> Future[Any]:
            if not self.may_grow:
                refuse_unserved(client, request)
            # pure=False: a failed call that is queued again must be a new task.
            queued = client.submit(self.function, *arguments, pure=False, resources=resources_of(request), **named)
            return _plain(queued)

        return self.started(start, self.request(*arguments, **named))


def task(sizing: Sizing, **options: Any) -> Callable[[Callable[..., Any]], DaskTask]:
    """Return a decorator that turns a function into a `DaskTask`; `options` are those of the class."""
    return lambda function: DaskTask(function, sizing, **options)


def _plain(queued: distributed.Future[Any]) -> Future[Any]:
    """Return a dask future as a standard future, which keeps the task alive until it ends."""
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
