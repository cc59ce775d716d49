"""Requests on a real local dask cluster of one worker that claims to have a card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from vramcast.cluster.request import Request
from vramcast.core.errors import RequestRefused, UsageError

GIB = 1 << 30
CARD = 16 * GIB
WAIT_S = 120

pytestmark = pytest.mark.filterwarnings("ignore")  # dask's and distributed's own, at start and end of a cluster


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Yield a client of a cluster with one worker of four threads, which the plugin gives a card of 16 GiB."""
    distributed = pytest.importorskip("distributed", reason="needs dask: pip install '.[dask]'")
    from vramcast.cluster.dask import CardMemory

    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=4, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as found,
    ):
        found.register_plugin(CardMemory("16GiB"))
        yield found


def of(size_gib: float) -> Request:
    return Request(int(size_gib * GIB), CARD)


def task(function: Callable[..., Any], sizing: Any, **options: Any) -> Any:
    from vramcast.cluster.dask import DaskTask

    return DaskTask(function, sizing, **options)


def test_plugin_registers_present_and_later_workers(client: Any) -> None:
    def resources() -> list[dict[str, float]]:
        return [worker["resources"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]

    assert resources() == [{"GPU_MEMORY": CARD}]
    client.cluster.scale(2)
    client.wait_for_workers(2, timeout=WAIT_S)
    # A task that only a worker with a card may run finishes on both workers: the plugin has registered them there.
    for address in client.scheduler_info(n_workers=-1)["workers"]:
        assert client.submit(lambda: 5, workers=[address], resources={"GPU_MEMORY": CARD}, pure=False).result(WAIT_S) == 5
    assert resources() == [{"GPU_MEMORY": CARD}] * 2
    client.cluster.scale(1)
    client.wait_for_workers(1, timeout=WAIT_S)


def test_jobs_that_fit_run_in_parallel(client: Any, noting: Callable[[float], Any], order: Callable[[], list[str]]) -> None:
    job = task(noting(WAIT_S), of(8))
    for queued in [job.submit(client, "one"), job.submit(client, "other")]:
        queued.result(WAIT_S)
    assert order() == ["start", "start", "end", "end"]


def test_jobs_that_do_not_fit_run_in_turn(client: Any, noting: Callable[[float], Any], order: Callable[[], list[str]]) -> None:
    job = task(noting(1.0), of(8.25))
    for queued in [job.submit(client, "one"), job.submit(client, "other")]:
        queued.result(WAIT_S)
    assert order() == ["start", "end", "start", "end"]


def test_annotations_have_same_resources(client: Any, noting: Callable[[float], Any], order: Callable[[], list[str]]) -> None:
    import dask

    from vramcast.cluster.dask import resources_of

    with dask.annotate(resources=resources_of(of(8.25))):
        jobs = [dask.delayed(noting(1.0), pure=False)(name) for name in ("one", "other")]
    for queued in client.compute(jobs, optimize_graph=False):
        queued.result(WAIT_S)
    assert order() == ["start", "end", "start", "end"]


def test_refuses_job_that_fits_no_worker(client: Any, noting: Callable[[float], Any], order: Callable[[], list[str]]) -> None:
    wanted = Request(20 * GIB, 40 * GIB)
    with pytest.raises(RequestRefused, match=r"requests 20.00 GiB .*at most 16.00 GiB of 'GPU_MEMORY'.*not queued"):
        task(noting(0), wanted).submit(client, "one")
    assert order() == []
    waiting = task(noting(0), wanted, may_grow=True).submit(client, "one")
    with pytest.raises(TimeoutError):
        waiting.result(0.5)
    assert order() == []


def test_error_mentions_workers_without_resource(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "scheduler_info", lambda n_workers: {"workers": {"a": {"resources": {}}}})
    with pytest.raises(RequestRefused, match=r"offer no 'GPU_MEMORY' \(register CardMemory\)"):
        task(print, of(1)).submit(client, "one")


def test_retries_with_larger_request(client: Any) -> None:
    def needs(size_bytes: int) -> int:
        import torch
        from distributed import get_worker

        state = get_worker().state
        asked = int(state.total_resources["GPU_MEMORY"] - state.available_resources["GPU_MEMORY"])
        if asked < size_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return asked // 2**20

    retries: list[tuple[int, int]] = []
    job = task(needs, of(4), on_retry=lambda before, after: retries.append((before.attempt, after.size_bytes // GIB)))
    assert job.submit(client, 3 * GIB).result(WAIT_S) == 4 * 1024
    assert retries == []
    assert job.submit(client, 5 * GIB).result(WAIT_S) == 6 * 1024
    assert job.submit(client, 7 * GIB).result(WAIT_S) == 16 * 1024
    assert retries == [(1, 6), (1, 6), (2, 16)]
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        job.submit(client, 17 * GIB).result(WAIT_S)


def test_returns_other_errors_and_cancellation(client: Any) -> None:
    from vramcast.cluster import dask

    with pytest.raises(ZeroDivisionError):
        task(lambda: 1 / 0, of(1)).submit(client).result(WAIT_S)
    queued = client.submit(print, resources={"GPU_MEMORY": 2 * CARD}, pure=False)
    found = dask._plain(queued)
    queued.cancel()
    with pytest.raises(CancelledError):
        found.result(WAIT_S)


def test_accepts_card_by_name_or_size(client: Any) -> None:
    from vramcast.cluster.dask import CardMemory
    from vramcast.hardware.cards import device

    assert CardMemory("a100-40gb").size_bytes == device("a100-40gb").total_bytes
    with pytest.raises(UsageError, match="h300"):
        CardMemory("h300")
