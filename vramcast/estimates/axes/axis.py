"""One axis of a job: the value that it has, others in its place, and how a user sets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramcast.jobs.job import Job
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions

if TYPE_CHECKING:
    from vramcast.estimates.result import Estimate


@dataclass(frozen=True, slots=True)
class JobAxis:
    """An axis of one job.

    Attributes:
        name: Its name, as in `--axis`.
        value: The job's own value.
        job_at: Returns the job with another value.
        way: Returns, for a value and its estimate, the setting or line with which a user sets it; "": it had no effect.
        options_at: Returns the options with which the job with another value is traced.
        most: The largest value that the job allows; None: unknown.
        limit: What limits it, in words.
        values: The only possible values; empty: all.
        search: The function with which the program searches for the value itself; "": none.
    """

    name: str
    value: int
    job_at: Callable[[int], Job]
    way: Callable[[int, Estimate], str]
    options_at: Callable[[int], RunOptions] = lambda value: AS_USUAL
    most: int | None = None
    limit: str = ""
    values: tuple[int, ...] = ()
    search: str = ""
