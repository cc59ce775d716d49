"""One job of the command line, a target's or a training command's: the options which describe it, and its estimate."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vramcast.cli import options as shared
from vramcast.cli.signals import first_interrupt
from vramcast.cli.terminal import progress
from vramcast.core.errors import UsageError
from vramcast.jobs.commands.launchers import BY_WORDS
from vramcast.jobs.text import JobText

if TYPE_CHECKING:
    from vramcast.estimates.estimator import Estimator
    from vramcast.estimates.result import Estimate

RUN_COMMANDS: Final = ("auto", "nullgpu")  # the tracers which can; the others run models
COMMAND_HELP: Final = (
    "what you type to train: train.py args, python -m package.train args, "
    f"{'/'.join(dict.fromkeys(one.name for one in BY_WORDS.values()))} train.py args; launchers are read, not run"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options which describe a job and how it is judged; `command` is what stands behind a `--` (main.py)."""
    shared.add_job(parser, is_optional=True)
    shared.add_fields(parser, "parallel")
    shared.add_course(parser)
    shared.add_fields(parser, *shared.RANKS)
    shared.add_output(parser)
    parser.add_argument("--on", dest="device", metavar="DEVICE", default=argparse.SUPPRESS, help="the same as --device")
    parser.set_defaults(device=None)
    parser.add_argument("--strict", action="store_true", help="accepted for older scripts; it changes nothing")


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job with the estimator that answers it."""

    text: JobText
    estimator: Estimator

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> CheckedJob:
        """Return the job that flat values give, by the names of the fields of `JobText`, `Training` and `Estimator`.

        Raises:
            UsageError: a value is wrong, or no card is named.
        """
        job = cls(JobText.of(values), shared.estimator_of(values))
        if values.get("device") is None and values.get("memory") is None:
            raise UsageError("A check needs a card: name one with --on (vramcast devices lists them), or a size with --memory.")
        return job

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
        if estimator.tracer not in RUN_COMMANDS:
            raise UsageError(f"--tracer {estimator.tracer} runs models, not commands: leave it out.")
        return estimate_of(estimator, self.text)


def job_text(options: argparse.Namespace) -> JobText:
    """Return the job of the command, which may stand behind a `--`."""
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    return JobText.of({**vars(options), "command": words})


def estimate_of(estimator: Estimator, text: JobText) -> Estimate:
    """Return the estimate of a command, which Ctrl-C ends early."""
    from vramcast.tracer.nullgpu.client import NullGpuTracer

    with NullGpuTracer.stoppable() as stop, first_interrupt(stop):
        return estimator.estimate_job(text.job(estimator.card))
