"""Ray tasks that request GPU memory: a share of a card (`num_gpus`), or bytes of a custom resource of the nodes.

    from vramcast.cluster import ray as sized

    @sized.task(estimate)                          # or a function of the call's arguments that returns an estimate
    def train(learning_rate): ...

    ray.get(train.remote(1e-3))                    # num_gpus = bound / card
    train.submit(1e-3).result()                    # the same, queued again with more after it ran out of memory

Ray counts the resource but does not enforce it: a task that uses more than its request takes memory from its neighbors.
Needs `pip install '.[ray]'`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from vramcast.cluster.request import Request, Sizing
from vramcast.cluster.retrying import ATTEMPTS, SizedTask
from vramcast.core.errors import RequestRefused, UsageError
from vramcast.core.extras import needed
from vramcast.core.units import gib

with needed("vramcast.cluster.ray", "ray"):
    import ray

# A conventional name for the resource of nodes with one card each, started with --resources '{"gpu_memory": 42297786368}'.
GPU_MEMORY: Final = "gpu_memory"
# spec: Ray's docs, "Fractional resource requirements": the smallest share. Without a share, Ray hides the card from the
# task.
_LEAST_SHARE: Final = 1e-4


def options_of(request: Request, resource: str | None = None) -> dict[str, Any]:
    """Return a request as options of `ray.remote`, `.options()`, or an actor.

    Args:
        request: Request of the job; for Ray Train, of each worker.
        resource: Name of a custom resource, in bytes, of nodes with one card each: it replaces the share if the cluster has
            cards of different sizes. None: a share of a card like the request's.
    """
    if resource is None:
        return {"num_gpus": request.share}
    return {"num_gpus": _LEAST_SHARE, "resources": {resource: request.size_bytes}}


def refuse_unserved(request: Request, resource: str | None = None) -> None:
    """Raise if no node of the cluster could ever run the job; Ray would let it wait forever.

    Raises:
        RequestRefused: The message gives the memory of the largest node.
    """
    wanted, name = (request.share, "GPU") if resource is None else (request.size_bytes, resource)
    largest = max((node["Resources"].get(name, 0) for node in ray.nodes() if node["Alive"]), default=0)
    if largest < wanted:
        has = f"at most {gib(int(largest))} of '{name}'" if resource is not None and largest else f"no '{name}'"
        raise RequestRefused(
            f"The job requests {request}, but the nodes of the Ray cluster have {has}: it was not queued. Start a node with "
            "more, or pass may_grow=True if an autoscaler adds nodes."
        )


class RayTask(SizedTask):
    """A function whose calls run as Ray tasks.

    Args:
        function: The function to run. A class cannot be a task: pass `options_of(request)` to its actors instead.
        sizing, attempts, may_grow, on_retry: See `SizedTask`.
        resource: See `options_of`.
        options: Further options of `ray.remote`.
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
            raise UsageError(
                f"{', '.join(sorted(taken))} cannot be given, because the estimate sets it: leave it out, or "
                "use ray.remote itself."
            )
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
            RequestRefused: It fits on no card, or on no node of the cluster.
        """
        return self._queue(self.request(*arguments, **named), arguments, named)

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        """Queue one call, and queue it again with a larger request if it runs out of GPU memory; return its future result.

        Raises:
            RequestRefused: See `remote`.
        """

        def start(request: Request) -> Future[Any]:
            found: Future[Any] = self._queue(request, arguments, named).future()
            return found

        return self.started(start, self.request(*arguments, **named))

    def _queue(self, request: Request, arguments: Any, named: Any) -> ray.ObjectRef[Any]:
        if not self.may_grow:
            refuse_unserved(request, self.resource)
        return self.function.options(**options_of(request, self.resource)).remote(*arguments, **named)


def task(sizing: Sizing, **options: Any) -> Callable[[Callable[..., Any]], RayTask]:
    """Return a decorator that turns a function into a `RayTask`; `options` are those of the class."""
    return lambda function: RayTask(function, sizing, **options)
