"""Tests of the lanes: automatic `integration` marks, and unit tests that break the rules."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from vramcast.tracer.processes.warm_worker import WarmWorker


@pytest.mark.parametrize("start", [lambda: subprocess.run([sys.executable, "-c", ""]), lambda: WarmWorker.ask(*[None] * 3)])
def test_a_unit_test_which_starts_a_process_or_asks_a_worker_fails(start: Any) -> None:
    with pytest.raises(pytest.fail.Exception, match="mark it integration"):
        start()


@pytest.mark.integration
def test_an_integration_test_may_start_a_process() -> None:
    assert subprocess.run([sys.executable, "-c", ""]).returncode == 0


@pytest.mark.usefixtures("needs_null_gpu")
def test_a_test_with_the_null_gpu_is_an_integration_test(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("integration")


def test_no_test_writes_into_the_developers_cache() -> None:
    assert "pytest" in os.environ["VRAMCAST_CACHE"]
