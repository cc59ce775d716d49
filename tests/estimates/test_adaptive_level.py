from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from vramcast.core.errors import DatasetError, UsageError
from vramcast.estimates.adaptive_level import RATE, Online

GIB = 1 << 30
CARD = 80 * GIB


@dataclass(frozen=True)
class Told:
    """An estimate that assumes a normal residual of 2 %."""

    reserved: int
    card_bytes: int = CARD

    def bound_at(self, level: float) -> int:
        from statistics import NormalDist

        return round(self.reserved * math.exp(NormalDist(0, 0.02).inv_cdf(level)))


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_keeps_coverage_after_drift(level: float) -> None:
    """Check that after a third of the jobs, when all take 5 % more than assumed, requests still cover them."""
    random = np.random.default_rng(3)
    online, held = Online(level), []
    for number in range(3000):
        told = Told(int(random.uniform(5, 60) * GIB))
        shift = 0.05 if number >= 1000 else 0.0
        measured = round(told.reserved * math.exp(float(random.normal(shift, 0.02))))
        held.append(measured <= online.request(told))
        online.observe(told, measured)
    limit = (max(level, 1 - level) + RATE) / (RATE * len(held))
    assert abs(float(np.mean(held)) - level) <= limit + 1e-9
    assert float(np.mean(held[-1000:])) > level - 0.04
    assert online.observed == 3000


def test_request_is_at_most_the_card() -> None:
    online = Online(0.9)
    assert online.request(Told(200 * GIB)) == CARD
    for _ in range(20):
        online.observe(Told(10 * GIB), 10 * GIB, ran_out_of_memory=True)
    assert online.asked > 1
    assert online.request(Told(10 * GIB)) == CARD


def test_one_miss_does_not_request_the_whole_card() -> None:
    """Check that coverage holds at 0.99, where one miss keeps the level above 1 for some fifty jobs."""
    random = np.random.default_rng(5)
    online, held, over = Online(0.99), [], []
    for _ in range(3000):
        told = Told(int(random.uniform(5, 60) * GIB))
        measured = round(told.reserved * math.exp(float(random.normal(0.01, 0.03))))
        request = online.request(told)
        held.append(measured <= request)
        over.append(request / measured - 1)
        online.observe(told, measured)
    assert abs(float(np.mean(held)) - 0.99) <= (0.99 + RATE) / (RATE * len(held)) + 1e-9
    assert float(np.median(over)) < 0.25


def test_state_survives_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    first = Online(0.9, path)
    for covered in (True, False, True):
        first.observe(Told(10 * GIB), 1 if covered else CARD)
    with open(path, "a") as file:
        file.write('{"level": 0.9, "ask')
    again = Online(0.9, path)
    assert (again.asked, again.observed) == (first.asked, 3)
    with pytest.raises(DatasetError, match=r"does not belong to a state at level 0\.95"):
        Online(0.95, path)


def test_rejects_invalid_level() -> None:
    with pytest.raises(UsageError, match="level is 2"):
        Online(2)


def test_judges_job_by_its_own_request() -> None:
    told = Told(10 * GIB)
    online = Online(0.9)
    request = online.request(told)
    for _ in range(200):  # jobs that take nothing lower the level meanwhile
        online.observe(told, 1, requested_bytes=request)
    assert online.request(told) < request
    before = online.asked
    held = online.observe(told, request, requested_bytes=request)
    assert held < before < online.observe(told, request + 1, requested_bytes=request)
