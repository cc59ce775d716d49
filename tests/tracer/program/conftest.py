"""The modules and running functions of a job, without those of the test session, which have thousands of parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.tracer.program import carried

_TESTS = str(Path(__file__).parents[2])
_RUNNERS = ("pytest", "pluggy", "execnet", "xdist", _TESTS)


@pytest.fixture(autouse=True)
def _state_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    modules, running = carried._own_modules, carried._running
    monkeypatch.setattr(
        carried, "_own_modules", lambda: [one for one in modules() if not str(getattr(one, "__file__", "")).startswith(_TESTS)]
    )
    monkeypatch.setattr(
        carried, "_running", lambda: [one for one in running() if not any(name in one.f_code.co_filename for name in _RUNNERS)]
    )
