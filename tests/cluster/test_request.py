"""The request of a job: never below its bound, never above a card, and larger after each failure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.cluster.request import Request, request_of
from vramcast.core.errors import RequestRefused, UsageError
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.jobs.job import Job

GIB = 1 << 30
MIB = 1 << 20


@given(st.integers(1, 200 * GIB), st.integers(0, 200 * GIB), st.integers(1, 2 * GIB))
def test_rounds_up_to_at_most_the_card(size_bytes: int, more_bytes: int, grain_bytes: int) -> None:
    request = Request(size_bytes, size_bytes + more_bytes, grain_bytes=grain_bytes)
    assert size_bytes <= request.size_bytes <= request.card_bytes
    assert request.size_bytes % grain_bytes == 0 or request.size_bytes == request.card_bytes
    assert request.size_bytes - size_bytes < grain_bytes
    assert 0 < request.share <= 1
    # A share has four digits, and at least as many bytes as the request.
    assert round(request.share * 10_000) == pytest.approx(request.share * 10_000, abs=1e-9)
    assert round(request.share * 10_000) * request.card_bytes >= request.size_bytes * 10_000


def test_truncated_share_is_not_too_small() -> None:
    cut = [parts for parts in range(1, 10_001) if int(parts / 10_000 * 10_000) != parts]
    assert 3228 in cut  # so that this test can fail
    for parts in range(1, 10_001):
        share = Request(parts, 10_000, grain_bytes=1).share
        assert parts <= int(share * 10_000) <= parts + 2
        assert share <= 1


@given(st.integers(1, 80 * GIB))
def test_requests_grow_up_to_whole_card(size_bytes: int) -> None:
    request: Request | None = Request(size_bytes, 80 * GIB)
    sizes = []
    while request is not None:
        sizes.append(request.size_bytes)
        assert request.attempt == len(sizes)
        request = request.larger()
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 80 * GIB
    assert all(2 * after >= 3 * before or after == 80 * GIB for before, after in pairwise(sizes))
    assert len(sizes) < 20  # 256 MiB times 1.5 to the 15th is above 80 GiB


@pytest.mark.parametrize(
    ("given", "said"),
    [((0, 5), "size_bytes is 0"), ((6, 5), "at most 5"), ((5, 0), "card_bytes is 0"), ((1.5, 5), "whole number")],
)
def test_rejects_wrong_numbers(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Request(*given)


def test_rejects_other_types_of_sizing() -> None:
    with pytest.raises(UsageError, match="must be an Estimate, a Request, or a function"):
        request_of("8GiB")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="The memory of a job is 8"):
        request_of(lambda: 8)  # type: ignore[arg-type, return-value]


def test_calls_sizing_function_with_arguments() -> None:
    asked = request_of(lambda size, *, card: Request(size, card, grain_bytes=1), (5,), {"card": 10})
    assert (asked.size_bytes, asked.card_bytes) == (5, 10)


# ------------------------------------------------------------------------------------------------ of estimates
@pytest.fixture
def estimated(make_job: Callable[..., Job], tiny_models: Any, auto_tracer: str) -> Callable[..., Estimate]:
    def make(**options: Any) -> Estimate:
        job = make_job(
            target=f"{tiny_models}:wide", batch="64x1024", labels="64x1024", device="t4", search_path=tuple(sys.path), **options
        )
        return Estimator("t4").estimate_job(job)

    return make


def test_requests_the_bound(estimated: Callable[..., Estimate]) -> None:
    estimate = estimated()
    request = request_of(estimate)
    assert estimate.upper_bound <= request.size_bytes < estimate.upper_bound + 256 * MIB
    assert (request.card, request.card_bytes) == ("Tesla T4", estimate.card_bytes)
    assert request_of(lambda: estimate) == request
    assert Request.of(estimate, 5 * GIB).size_bytes == 5 * GIB
    assert Request.of(estimate, 500 * GIB).size_bytes == estimate.card_bytes


def test_bound_above_card_requests_whole_card(
    estimated: Callable[..., Estimate],
) -> None:
    estimate = estimated()
    between = (estimate.process + estimate.upper_bound) // 2
    assert request_of(estimated(memory_bytes=between)).share == 1
    with pytest.raises(RequestRefused, match=r"The job needs .* but Tesla T4 has .* it was not queued"):
        request_of(estimated(memory_bytes=estimate.process - 64 * MIB))
