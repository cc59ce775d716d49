"""One job which is checked: the options which describe it, its estimate, and the verdict."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.cli import command_job
from vramcast.cli import options as shared
from vramcast.cli.terminal import progress
from vramcast.core.errors import UsageError
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.jobs.text import JobText


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options which describe a job and how it is judged; `command` is what stands behind a `--` (main.py)."""
    shared.add_job(parser, is_optional=True)
    shared.add_fields(parser, "parallel")
    shared.add_course(parser)
    shared.add_fields(parser, *shared.RANKS)
    shared.add_output(parser)
    parser.add_argument("--on", dest="device", metavar="DEVICE", default=argparse.SUPPRESS, help="the same as --device")
    parser.add_argument("--strict", action="store_true", help="exit 4 when the point estimate fits and the bound does not")


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job with the estimator that answers it; `strict`: it is uncertain where only its point estimate fits."""

    text: JobText
    estimator: Estimator
    strict: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> CheckedJob:
        """Return the job that flat values give, by the names of the fields of `JobText`, `Training` and `Estimator`.

        Raises:
            UsageError: a value is wrong.
        """
        return cls(JobText.of(values), shared.estimator_of(values), values.get("strict", False))

    def estimate(self) -> Estimate:
        """Return the job's estimate.

        Raises:
            UsageError: the job is not described, or in two ways.
            CannotEstimate: no number can be given.
        """
        estimator = self.estimator
        if self.text.command is None:
            with progress(f"checking {self.text.target} on {estimator.card.name}"):
                return estimator.estimate_job(self.text.job(estimator.card))
        if estimator.tracer not in command_job.RUN_COMMANDS:
            raise UsageError(f"--tracer {estimator.tracer} runs models, not commands: leave it out.")
        return command_job.estimate_of(estimator, self.text)
