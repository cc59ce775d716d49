"""Processes of a job that are alive at the same time, and therefore add up."""

from __future__ import annotations

import math
import os

import pytest

from vramcast.tracer.nullgpu.child import lifetimes
from vramcast.tracer.nullgpu.child.lifetimes import Life, fullest_moment


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Life(1, 0, 5), Life(2, 4, 9), True),
        (Life(1, 0, 5), Life(2, 5, 9), False),  # it began after the first one had ended
        (Life(1, 0, 9), Life(2, 3, 4), True),
        (Life(1, 0), Life(2, 100, 200), True),  # its end is unknown
        (Life(1, 0, 5), Life(2, 6, 9, frozenset({1})), True),  # it was not waited for
        (Life(1, 0, 5), Life(2, 6, 9, frozenset({7})), False),
    ],
)
def test_detects_overlapping_processes(one: Life, other: Life, expected: bool) -> None:
    assert one.overlaps(other) is other.overlaps(one) is expected


@pytest.mark.parametrize(
    ("lives", "sizes", "expected"),
    [
        ([Life(1, 0, 2), Life(2, 2, 4), Life(3, 4, 6)], [3, 5, 4], [1]),
        ([Life(1, 0, 9), Life(2, 1, 3), Life(3, 4, 6)], [1, 5, 7], [0, 2]),
        ([Life(1, 0, 9), Life(2, 1, 5), Life(3, 4, 6)], [1, 5, 7], [0, 1, 2]),
        ([Life(1, 0, 1), Life(2, 2, 9), Life(3, 3, 9)], [100, 30, 40], [0]),
        ([Life(began_s=5), Life(2, 0, 4), Life(3, 6, 8)], [1, 9, 7], [1]),
    ],
)
def test_fullest_moment_has_largest_sum(lives: list[Life], sizes: list[int], expected: list[int]) -> None:
    assert fullest_moment(lives, sizes) == expected


def test_own_process_is_alive() -> None:
    assert 0 < lifetimes.made_s() <= lifetimes.now_s() + 0.01
    assert lifetimes.now_s() < math.inf
    assert lifetimes.unreaped([os.getpid(), 2**30]) == {os.getpid()}
