"""Tests of the simulated cluster: schedules drawn by hand, and invariants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster.cluster import Attempt, QueuedJob, simulate
from benchmarks.cluster.outcome import compare, outcome
from vramcast.core.errors import UsageError
from vramcast.core.units import GIB


def job(duration_s: float, peak_bytes: int, arrival_s: float = 0.0) -> QueuedJob:
    return QueuedJob("a", arrival_s, duration_s, peak_bytes)


def spans(attempts: Sequence[Attempt]) -> list[tuple[int, int, float, float, bool]]:
    return [(one.job, one.cards[0], one.start_s, one.end_s, one.died) for one in attempts]


def test_shares_card_while_requests_fit() -> None:
    jobs = [job(10, 6), job(10, 4), job(5, 1)]
    assert spans(simulate(jobs, [(6,), (4,), (1,)], [10])) == [
        (0, 0, 0, 10, False),
        (1, 0, 0, 10, False),
        (2, 0, 10, 15, False),
    ]


def test_takes_first_card_with_room() -> None:
    jobs = [job(10, 6), job(10, 6), job(10, 3)]
    assert [one[:2] for one in spans(simulate(jobs, [(6,), (6,), (3,)], [8, 10]))] == [(0, 0), (1, 1), (2, 1)]


def test_job_that_fits_passes_waiting_one() -> None:
    jobs = [job(10, 6), job(10, 8, arrival_s=1), job(3, 4, arrival_s=2)]
    assert spans(simulate(jobs, [(6,), (8,), (4,)], [10])) == [(2, 0, 2, 5, False), (0, 0, 0, 10, False), (1, 0, 10, 20, False)]


def test_job_above_request_climbs_ladder() -> None:
    attempts = simulate([job(100, 7)], [(5, 4, 6, 8)], [10], oom_share=0.25)
    assert [one.request_bytes for one in attempts] == [5, 6, 8]  # 4 is below the failed request
    assert spans(attempts) == [(0, 0, 0, 25, True), (0, 0, 25, 50, True), (0, 0, 50, 150, False)]


def test_refuses_job_above_largest_card() -> None:
    attempts = simulate([job(100, 30)], [(12,)], [10, 20], oom_share=0.1)
    assert [(one.cards, one.request_bytes) for one in attempts] == [((1,), 12), ((1,), 20)]
    figures = outcome([job(100, 30)], attempts, [10, 20])
    assert (figures.jobs, figures.finished, figures.refused, figures.ooms) == (1, 0, 1, 2)


def test_empty_or_oversized_ladder_requests_whole_card() -> None:
    for ladder in ((), (99,), (10,)):
        assert [one.request_bytes for one in simulate([job(1, 2)], [ladder], [10])] == [10]


def test_interference_slows_neighbours_down() -> None:
    # Alone until 10, then two at half speed: 0 has 90 s left, 1 has 20 and ends at 50; 0 then has 70 left.
    attempts = simulate([job(100, 1), job(20, 1, arrival_s=10)], [(1,), (1,)], [2], interference=1.0)
    assert spans(attempts) == [(1, 0, 10, 50, False), (0, 0, 0, 120, False)]
    assert spans(simulate([job(100, 1), job(20, 1)], [(1,), (1,)], [1, 1], interference=1.0))[1][3] == 100


def test_figures_equal_hand_calculation() -> None:
    size = 8 * GIB
    jobs = [job(3600, 2 * GIB), job(7200, 6 * GIB)]
    # 0 requests 4 GiB for an hour. 1 requests 4, dies after half of its two hours, and then gets the whole card for two.
    figures = outcome(jobs, simulate(jobs, [(4 * GIB,), (4 * GIB,)], [size, size], oom_share=0.5), [size, size])
    assert asdict(figures) == {
        "jobs": 2,
        "finished": 2,
        "refused": 0,
        "ooms": 1,
        "makespan_s": 3600 + 7200,
        "mean_wait_s": 1800,
        "jobs_per_card": pytest.approx(4 / 3),  # 1 + 1 + 2 job hours in 1 + 2 card hours
        "gpu_hours": 3,
        "wasted_gpu_hours": 0.5,
        "over_reserved_gib_hours": 2 * 1 + 2 * 2,
        "unused_share": pytest.approx(6 / (4 + 4 + 16)),
    }


def test_job_with_several_cards_waits_for_all() -> None:
    jobs = [job(3600, 6), replace(job(3600, 6), cards=2), job(3600, 4)]
    attempts = simulate(jobs, [(6,), (6,), (4,)], [10, 10])
    assert [(one.job, one.cards, one.start_s) for one in attempts] == [(0, (0,), 0), (2, (0,), 0), (1, (0, 1), 3600)]
    figures = outcome(jobs, attempts, [10, 10])
    assert (figures.gpu_hours, figures.jobs_per_card, figures.ooms) == (3, pytest.approx(4 / 3), 0)
    died = simulate(jobs[1:2], [(5, 6)], [10, 10], oom_share=0.5)
    assert [(one.cards, one.died) for one in died] == [((0, 1), True), ((0, 1), False)]
    assert outcome(jobs[1:2], died, [10, 10]).wasted_gpu_hours == pytest.approx(2 * 0.5 * 0.5)


def test_job_with_several_cards_runs_like_fullest() -> None:
    jobs = [job(20, 1), replace(job(100, 1), cards=2)]
    # Until 40 both at half speed, then 1 has 80 of its 100 s left.
    assert spans(simulate(jobs, [(1,), (1,)], [2, 2], interference=1.0)) == [(0, 0, 0, 40, False), (1, 0, 0, 120, False)]


def test_no_jobs_give_zeros() -> None:
    assert set(asdict(outcome([], simulate([], [], [10]), [10])).values()) == {0}


def test_gap_between_jobs_costs_no_gpu_hours() -> None:
    jobs = [job(3600, 1), job(3600, 1, arrival_s=36000)]
    assert outcome(jobs, simulate(jobs, [(), ()], [10]), [10]).gpu_hours == 2


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"cards": []}, "at least one"),
        ({"cards": [0]}, "at least one"),
        ({"requests": []}, "one ladder per job"),
        ({"jobs": [replace(job(1, 1), cards=2)]}, "there are 1 of the largest size"),
        ({"requests": [(0,)]}, "0 bytes"),
        ({"oom_share": 0.0}, "oom_share"),
        ({"interference": -1.0}, "interference"),
    ],
)
def test_rejects_impossible_simulations(values: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        simulate(**{"jobs": [job(1, 1)], "requests": [(1,)], "cards": [1], **values})


@pytest.mark.parametrize("values", [(0.0, 1), (float("inf"), 1), (1.0, 0), (1.0, 1, -1.0)])
def test_rejects_job_without_end_or_size(values: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match="arrives"):
        job(*values)


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, Any]:
    seconds = st.floats(0, 100, allow_subnormal=False)
    cards = draw(st.lists(st.integers(1, 50), min_size=1, max_size=3))
    jobs = draw(st.lists(st.builds(job, seconds.filter(lambda s: s > 1e-3), st.integers(1, 60), seconds), max_size=10))
    jobs = [replace(one, cards=draw(st.integers(1, cards.count(max(cards))))) for one in jobs]
    ladder = st.lists(st.integers(1, 80), max_size=3).map(tuple)
    return {
        "jobs": jobs,
        "requests": [draw(ladder) for _ in jobs],
        "cards": cards,
        "oom_share": draw(st.sampled_from([0.1, 1.0])),
        "interference": draw(st.sampled_from([0.0, 0.3, 1.0])),
    }


@settings(deadline=None)
@given(clusters())
def test_no_card_is_overcommitted(cluster: dict[str, Any]) -> None:
    jobs, cards = cluster["jobs"], cluster["cards"]
    attempts = simulate(**cluster)
    for one in attempts:
        assert len(set(one.cards)) == jobs[one.job].cards
        together = [other for other in attempts if other.start_s <= one.start_s < other.end_s]
        for card in one.cards:
            assert sum(other.request_bytes for other in together if card in other.cards) <= cards[card]
        assert one.start_s >= jobs[one.job].arrival_s
        assert one.died == (jobs[one.job].peak_bytes > one.request_bytes)
    for index, queued in enumerate(jobs):
        mine = [one for one in attempts if one.job == index]
        assert [one.died for one in mine[:-1]] == [True] * (len(mine) - 1)
        assert mine[-1].died == (queued.peak_bytes > max(cards))
        sizes = [one.request_bytes for one in mine]
        assert sizes == sorted(set(sizes))
    figures = outcome(jobs, attempts, cards)
    assert figures.makespan_s >= max((jobs[one.job].duration_s for one in attempts if not one.died), default=0)
    assert figures.finished + figures.refused == len(jobs)
    assert 0 <= figures.unused_share <= 1
    died_s = sum((one.end_s - one.start_s) * len(one.cards) for one in attempts if one.died)
    assert figures.wasted_gpu_hours * 3600 <= died_s * (1 + 1e-9)
    assert figures.mean_wait_s >= 0
    assert simulate(**cluster) == attempts


@settings(deadline=None)
@given(clusters())
def test_exact_requests_waste_nothing(cluster: dict[str, Any]) -> None:
    largest = max(cluster["cards"])
    jobs = [one for one in cluster["jobs"] if one.peak_bytes <= largest]
    figures = compare(jobs, {"perfect": [(one.peak_bytes,) for one in jobs], "whole": [()] * len(jobs)}, cluster["cards"])
    assert figures["perfect"].ooms == figures["whole"].ooms == 0
    assert figures["perfect"].unused_share == figures["perfect"].wasted_gpu_hours == 0
    assert figures["perfect"].finished == len(jobs)


@settings(deadline=None)
@given(clusters())
def test_interference_needs_neighbours(cluster: dict[str, Any]) -> None:
    whole = {**cluster, "requests": [()] * len(cluster["jobs"])}
    assert simulate(**{**whole, "interference": 0.0}) == simulate(**{**whole, "interference": 1.0})
