"""Requests on a real local Ray cluster of one node that claims to have a card."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vramcast.cluster.request import Request
from vramcast.core.errors import RequestRefused, UsageError
from vramcast.estimates.estimator import estimate
from vramcast.jobs.job import TensorSpec

GIB = 1 << 30
CARD = 16 * GIB
WAIT_S = 120

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def sized() -> Iterator[Any]:
    """Yield vramcast.cluster.ray with a cluster of one card of 16 GiB, which is also a resource in bytes."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install '.[ray]'")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}  # neither network nor home
    ray.init(
        num_cpus=4, num_gpus=1, resources={"gpu_memory": CARD}, include_dashboard=False, log_to_driver=False,
        address="local", object_store_memory=100 << 20,
    )  # fmt: skip
    from vramcast.cluster import ray as module

    yield module
    ray.shutdown()


def of(size_gib: float) -> Request:
    return Request(int(size_gib * GIB), CARD)


@pytest.mark.parametrize("resource", [None, "gpu_memory"])
def test_jobs_that_fit_run_in_parallel(
    sized: Any, noting: Callable[[float], Any], order: Callable[[], list[str]], resource: str | None
) -> None:
    job = sized.RayTask(noting(WAIT_S), of(8), resource=resource)
    for queued in [job.submit("one"), job.submit("other")]:
        queued.result(WAIT_S)
    assert order() == ["start", "start", "end", "end"]


@pytest.mark.parametrize("resource", [None, "gpu_memory"])
def test_jobs_that_do_not_fit_run_in_turn(
    sized: Any, noting: Callable[[float], Any], order: Callable[[], list[str]], resource: str | None
) -> None:
    job = sized.RayTask(noting(1.0), of(8.25), resource=resource)
    for queued in [job.submit("one"), job.submit("other")]:
        queued.result(WAIT_S)
    assert order() == ["start", "end", "start", "end"]


def test_refuses_job_that_fits_no_node(sized: Any, noting: Callable[[float], Any], order: Callable[[], list[str]]) -> None:
    import ray

    wanted = Request(20 * GIB, 40 * GIB)
    job = sized.RayTask(noting(0), wanted, resource="gpu_memory")
    said = r"requests 20.00 GiB of GPU \(40.00 GiB\).*at most 16.00 GiB of 'gpu_memory'.*not queued"
    for queue in (job.remote, job.submit):
        with pytest.raises(RequestRefused, match=said):
            queue("one")
    with pytest.raises(RequestRefused, match="no 'other'"):
        sized.RayTask(noting(0), wanted, resource="other").remote("one")
    assert order() == []
    # With an autoscaler the job waits, as in Ray.
    waiting = sized.RayTask(noting(0), wanted, resource="gpu_memory", may_grow=True).remote("one")
    assert ray.wait([waiting], timeout=0.5)[0] == []
    ray.cancel(waiting)


def test_retries_with_larger_share(sized: Any) -> None:
    def needs(size_bytes: int, card_bytes: int) -> float:
        import ray
        import torch

        share = float(ray.get_runtime_context().get_assigned_resources()["GPU"])
        if share * card_bytes < size_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return share

    retries: list[tuple[float, float]] = []
    job = sized.RayTask(needs, of(4), on_retry=lambda before, after: retries.append((before.share, after.share)))
    assert job.submit(3 * GIB, card_bytes=CARD).result(WAIT_S) == 0.25
    assert retries == []
    assert job.submit(5 * GIB, card_bytes=CARD).result(WAIT_S) == 0.375
    assert job.submit(7 * GIB, card_bytes=CARD).result(WAIT_S) == 1.0
    assert retries == [(0.25, 0.375), (0.25, 0.375), (0.375, 1.0)]
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        job.submit(17 * GIB, card_bytes=CARD).result(WAIT_S)


def test_returns_other_errors(sized: Any, tmp_path: Path) -> None:
    def fails(path: str) -> None:
        from pathlib import Path

        with Path(path).open("a") as log:
            log.write("ran\n")
        raise KeyError("no such layer")

    with pytest.raises(KeyError):
        sized.RayTask(fails, of(1)).submit(str(tmp_path / "log")).result(WAIT_S)
    assert (tmp_path / "log").read_text() == "ran\n"


def test_derives_request_from_call(sized: Any, auto_tracer: str) -> None:
    import ray

    def estimated(width: int) -> Any:
        return estimate(f_linear(width), TensorSpec((8, width)), device="t4", tracer="fake")

    @sized.task(estimated, max_retries=0)
    def share(width: int) -> float:
        import ray

        return float(ray.get_runtime_context().get_assigned_resources()["GPU"])

    small, large = (share.request(width) for width in (4096, 16384))
    # weight, gradient and Adam's two states, of 16384^2 floats: 4 GiB
    assert small.size_bytes < 2 * GIB < 4 * GIB < large.size_bytes
    assert ray.get([share.remote(4096), share.remote(16384)], timeout=WAIT_S) == [small.share, large.share]
    with pytest.raises(RequestRefused, match="Tesla T4 has"):
        share.remote(40_000)  # 4 x 6 GB


def f_linear(width: int) -> Callable[[], Any]:
    import torch

    return lambda: torch.nn.Linear(width, width)


def test_ray_counts_requested_share(sized: Any) -> None:
    import ray

    def share() -> float:
        import ray

        return float(ray.get_runtime_context().get_assigned_resources()["GPU"])

    request = Request(3228, 10_000, grain_bytes=1)  # for num_gpus=0.3228 Ray takes 0.3227
    assert ray.get(sized.RayTask(share, request).remote(), timeout=WAIT_S) == request.share == 0.3229


def test_rejects_options_set_by_estimate(sized: Any) -> None:
    with pytest.raises(UsageError, match="num_gpus cannot be given, because the estimate sets it"):
        sized.RayTask(print, of(1), num_gpus=1)
    assert sized.options_of(of(4)) == {"num_gpus": 0.25}
    assert sized.options_of(of(4), "gpu_memory") == {"num_gpus": 1e-4, "resources": {"gpu_memory": 4 * GIB}}
