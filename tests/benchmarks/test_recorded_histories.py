"""Tests of the alignment of two histories of one script, event by event, on small made-up ones."""

from __future__ import annotations

from typing import Any

from benchmarks.accuracy.recorded import SCRIPTS, Comparison, aligned, compare, described, events_of, report, start_of

STEP = [("alloc", 512 * n) for n in range(1, 20)] + [("free_requested", 512 * n) for n in range(1, 20)]


def entries(events: list[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"action": action, "addr": 0, "size": size} for action, size in events]


def test_compares_only_requests_and_frees() -> None:
    history = [("alloc", 1), ("segment_alloc", 2), ("free_requested", 1), ("free_completed", 1)]
    assert events_of(entries(history)) == [("alloc", 1), ("free_requested", 1)]


def test_matches_equal_histories_completely() -> None:
    assert aligned(STEP, STEP) == (len(STEP), [], [])


def test_counts_additional_request_once() -> None:
    more = [*STEP[:7], ("alloc", 33554432), *STEP[7:]]
    assert aligned(STEP, more) == (len(STEP), [], [("alloc", 33554432)])
    assert aligned(more, STEP) == (len(STEP), [("alloc", 33554432)], [])


def test_matches_nothing_of_different_histories() -> None:
    equal, missing, extra = aligned([("alloc", 1)] * 9, [("alloc", 2)] * 7)
    assert (equal, len(missing), len(extra)) == (0, 9, 0)


def test_matches_warm_recording_with_last_step() -> None:
    ours = [("alloc", 7), *STEP, *STEP, *STEP, ("alloc", 8)]
    assert start_of(STEP, ours) == 1 + 2 * len(STEP)
    assert start_of([*STEP, *STEP], ours) == 1 + len(STEP)
    assert start_of(STEP, []) == 0


def test_ignores_events_after_recording() -> None:
    found = compare("x", entries(STEP), entries([*STEP, ("alloc", 8)]), 0.0)
    assert (found.here, found.share) == (len(STEP), 1.0)


def test_counts_segment_events_in_window() -> None:
    before = [("segment_alloc", 2097152), *STEP]
    found = compare("x", entries([("segment_alloc", 4096), *STEP]), entries([*before, ("segment_alloc", 4096), *STEP]), 0.0)
    assert (found.equal, found.share, found.segments) == (len(STEP), 1.0, (1, 1))


def test_reports_events_of_one_side() -> None:
    path = next(iter(SCRIPTS))
    one = Comparison(path, 2, 3, 2, (), (("alloc", 33554432),), (1, 1))
    assert described(one) == "+1 x 32.000 MiB"
    assert "80.00 %" in report([one])
    assert "no such file" in report([Comparison(path, message="no such file")])
