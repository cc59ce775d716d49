"""A tracer which runs nothing: it gives what was recorded. For tests, and for observations that came from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vramcast.jobs.job import Job
from vramcast.tracer.observation import Observation
from vramcast.tracer.protocol.run_options import RunOptions


@dataclass(frozen=True, slots=True)
class RecordedTracer:
    """Gives an observation for every job, or asks a function which.

    Attributes:
        answer: The observation, or a function of job and options which returns one or raises.
    """

    answer: Observation | Callable[[Job, RunOptions], Observation]
    name: str = "recorded"

    def observe(self, job: Job, options: RunOptions, *, timeout_s: float) -> Observation:
        """See `Tracer`; no time passes."""
        return self.answer if isinstance(self.answer, Observation) else self.answer(job, options)
