"""A rank that waits for another one is stopped; one in a long call is not."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from vramcast.tracer.program import cutoff
from vramcast.tracer.program.cutoff import STOP, stoppable
from vramcast.tracer.program.training_loop import StopJob


class _Course:
    """The part of a course used here."""

    def stop_at_once(self, why: str) -> None:
        """End the job."""
        self.why = why
        raise StopJob

    def stop(self, why: str) -> None:
        """Stop later; never called here."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_stops_only_waits_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutoff, "_IDLE_S", 0.2)
    monkeypatch.setattr(cutoff, "_IDLE_SHARE", 1.0)  # looking takes a share of such a short time
    monkeypatch.setattr(cutoff, "_LOOK_S", 0.05)
    course = _Course()
    with stoppable(course, None, has_absent=True):  # type: ignore[arg-type]
        signal.pthread_sigmask(signal.SIG_BLOCK, [STOP])  # like a library call that no handler interrupts
        time.sleep(1.0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [STOP])
        assert not hasattr(course, "why")
        with pytest.raises(StopJob):
            time.sleep(60)
    assert course.why.startswith("it waited 0 s for another rank")
    assert "test_waits.py" in course.why
