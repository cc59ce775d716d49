"""Tests of the lanes: automatic `integration` marks, and unit tests that break the rules."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from vramcast.tracer.processes.warm_worker import WarmWorker


@pytest.mark.parametrize("start", [lambda: subprocess.run([sys.executable, "-c", ""]), lambda: WarmWorker.ask(*[None] * 3)])
def test_unit_test_with_process_or_worker_fails(start: Any) -> None:
    with pytest.raises(pytest.fail.Exception, match="mark it integration"):
        start()


@pytest.mark.integration
def test_integration_test_may_start_process() -> None:
    assert subprocess.run([sys.executable, "-c", ""]).returncode == 0


@pytest.mark.usefixtures("needs_null_gpu")
def test_null_gpu_test_is_integration_test(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("integration")


def test_tests_use_their_own_cache() -> None:
    assert "pytest" in os.environ["VRAMCAST_CACHE"]
