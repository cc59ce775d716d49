"""Ray tasks which ask for the GPU memory that they take: a share of a card (`num_gpus`), or bytes of a resource of the nodes.

    from vramcast.schedulers import ray as sized

    @sized.task(estimate)                          # or a function of the call's arguments which returns an estimate
    def train(learning_rate): ...

    ray.get(train.remote(1e-3))                    # num_gpus = bound / card
    train.submit(1e-3).result()                    # the same, queued again with more after it ran out of memory

Ray counts, and does not enforce: a task which takes more than it asked for takes it from its neighbours. Needs
`pip install 'vramcast[ray]'`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from vramcast.core.errors import RequestRefused, UsageError
from vramcast.core.extras import needed
from vramcast.core.units import gib
from vramcast.schedulers.request import Request, Sizing
from vramcast.schedulers.retrying import ATTEMPTS, SizedTask

with needed("vramcast.schedulers.ray", "ray"):
    import ray

# A usual name for the resource which nodes of one card each are started with: --resources '{"gpu_memory": 42297786368}'.
GPU_MEMORY: Final = "gpu_memory"
# spec: Ray's docs, "Fractional resource requirements": the least share. Without any, Ray hides the card from the task.
_LEAST_SHARE: Final = 1e-4


def options_of(request: Request, resource: str | None = None) -> dict[str, Any]:
    """Return a request as options of `ray.remote`, `.options()`, or an actor.

    Args:
        request: Of the job; for Ray Train it is that of each worker.
        resource: The name of a resource of nodes which have one card each, in bytes: where the cards of a cluster differ, it is
            asked for instead of a share. None: a share of a card like the request's.
    """
    if resource is None:
        return {"num_gpus": request.share}
    return {"num_gpus": _LEAST_SHARE, "resources": {resource: request.size_bytes}}


def refuse_unserved(request: Request, resource: str | None = None) -> None:
    """Raise where no node of the cluster could ever run the job; Ray would let it wait for ever.

    Raises:
        RequestRefused: the message says what the largest node has.
    """
    wanted, name = (request.share, "GPU") if resource is None else (request.size_bytes, resource)
    largest = max((node["Resources"].get(name, 0) for node in ray.nodes() if node["Alive"]), default=0)
    if largest < wanted:
        has = f"at most {gib(int(largest))} of '{name}'" if resource is not None and largest else f"no '{name}'"
        raise RequestRefused(
            f"The job asks for {request}, and the nodes of the Ray cluster have {has}: it is not queued. Start a node which "
            "has more, or say may_grow=True where an autoscaler adds nodes."
        )


class Task(SizedTask):
    """A function whose calls run as Ray tasks.

    Args:
        function: What runs; a class makes no task: give `options_of(request)` to its actors.
        sizing, attempts, may_grow, on_retry: See `SizedTask`.
        resource: As for `options_of`.
        options: Of `ray.remote`, besides.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        sizing: Sizing,
        *,
        resource: str | None = None,
        attempts: int = ATTEMPTS,
        may_grow: bool = False,
        on_retry: Callable[[Request, Request], None] | None = None,
        **options: Any,
    ) -> None:
        if taken := options.keys() & {"num_gpus", "resources"}:
            raise UsageError(f"{', '.join(sorted(taken))}: the estimate says it: leave it out, or use ray.remote itself.")
        super().__init__(
            ray.remote(**options)(function) if options else ray.remote(function),
            sizing,
            attempts=attempts,
            may_grow=may_grow,
            on_retry=on_retry,
        )
        self.resource = resource

    def remote(self, *arguments: Any, **named: Any) -> ray.ObjectRef[Any]:
        """Queue one call, as a Ray task's `remote` does; return the reference of its result.

        Raises:
            RequestRefused: it fits on no card, or on none of the cluster.
        """
        return self._queue(self.request(*arguments, **named), arguments, named)

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        """Queue one call, and queue it again with a larger request when it runs out of GPU memory; return its future result.

        Raises:
            RequestRefused: as for `remote`.
        """

        def start(request: Request) -> Future[Any]:
            found: Future[Any] = self._queue(request, arguments, named).future()
            return found

        return self.started(start, self.request(*arguments, **named))

    def _queue(self, request: Request, arguments: Any, named: Any) -> ray.ObjectRef[Any]:
        if not self.may_grow:
            refuse_unserved(request, self.resource)
        return self.function.options(**options_of(request, self.resource)).remote(*arguments, **named)


def task(sizing: Sizing, **options: Any) -> Callable[[Callable[..., Any]], Task]:
    """Return a decorator which makes a function a `Task`; `options` are those of the class."""
    return lambda function: Task(function, sizing, **options)
