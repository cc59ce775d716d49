"""Tests of a real service: it answers equal requests of many clients once and alike, and a kill loses nothing acknowledged."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
from benchmarks.serving.kills import killed  # after the lines above
from benchmarks.serving.load import job
from benchmarks.serving.running import ask_all, message, running

pytestmark = [pytest.mark.integration, pytest.mark.release]


@pytest.fixture(autouse=True)
def _with_the_null_gpu(needs_null_gpu: None) -> None:
    """Skip without a null GPU."""


def test_answers_simultaneous_clients_once_and_alike(tmp_path: Path) -> None:
    texts = [message("/v1/estimates", job("torchvision:resnet18", batch)) for batch in (1, 2) for _ in range(40)]
    with running(tmp_path, "--workers", "1", "--queue", "100") as service:
        found = asyncio.run(ask_all(service.port, texts, len(texts), keep=True))
    assert found.statuses == [200] * len(texts)
    assert sorted(Counter(found.bodies).values()) == [40, 40]
    assert {json.loads(body)["estimate"]["peaks"]["process"] > 0 for body in found.bodies} == {True}


def test_keeps_acknowledged_observations_after_kill(tmp_path: Path) -> None:
    acknowledged, lost, twice, made_again = killed(tmp_path, 2)
    assert acknowledged > 0
    assert (lost, twice, made_again) == (0, 0, 0)
