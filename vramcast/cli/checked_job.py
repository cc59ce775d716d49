"""One job of the command line: a TARGET or a training command, its options, and its estimate."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vramcast.cli import options as shared
from vramcast.cli.help_text import ADVANCED, group
from vramcast.cli.signals import first_interrupt
from vramcast.cli.terminal import progress
from vramcast.core.errors import UsageError
from vramcast.jobs.commands.launchers import BY_WORDS
from vramcast.jobs.targets import as_typed
from vramcast.jobs.text import JobText
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions

if TYPE_CHECKING:
    from vramcast.estimates.estimator import Estimator
    from vramcast.estimates.result import Estimate
    from vramcast.jobs.job import Job

RUN_COMMANDS: Final = ("auto", "nullgpu")  # the tracers that run commands; the others run models
COMMAND_HELP: Final = (
    "the command that starts the training: train.py args, python -m package.train args, "
    f"{'/'.join(dict.fromkeys(one.name for one in BY_WORDS.values()))} train.py args; "
    "vramcast reads a launcher's options but does not run it"
)


def add_arguments(parser: argparse.ArgumentParser, *, without: Collection[str] = ()) -> None:
    """Add the options that describe a job and its estimate; `command` holds the words after `--` (main.py).

    Args:
        parser: Gets them.
        without: Fields that get no option.
    """
    shared.add_job(parser, is_optional=True, without=without)
    shared.add_fields(parser, "parallel")
    shared.add_course(parser)
    shared.add_fields(parser, *shared.RANKS)
    shared.add_output(parser)
    parser.set_defaults(device=None)
    group(parser, ADVANCED).add_argument(
        "--strict", action="store_true", help="no effect; accepted because older scripts pass it"
    )


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job with the estimator that answers it."""

    text: JobText
    estimator: Estimator

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> CheckedJob:
        """Return the job described by flat values, whose keys are the fields of `JobText`, `Training` and `Estimator`.

        Raises:
            UsageError: A value is wrong, or no card is named.
        """
        job = cls(shared.text_of(values), shared.estimator_of(values))
        shared.require_card(values)
        return job

    def estimate(self) -> Estimate:
        """Return the job's estimate.

        Raises:
            UsageError: There is no description of the job, or there are two.
            CannotEstimate: No number can be given.
        """
        return self.trace(self.job())

    def job(self) -> Job:
        """Return the job itself.

        Raises:
            UsageError: There is no description of it, there are two, or the tracer does not run commands.
        """
        if self.text.command is not None and self.estimator.tracer not in RUN_COMMANDS:
            raise UsageError(f"--tracer {self.estimator.tracer} works for models, not for commands: leave out --tracer.")
        return self.text.asked().job(self.estimator.named_card)

    def trace(self, job: Job, how: RunOptions = AS_USUAL) -> Estimate:
        """Return the estimate of the job or of a variant of it; Ctrl-C ends a command early.

        Raises:
            CannotEstimate: No number can be given.
        """
        if job.command is not None:
            return estimate_of(self.estimator, self.text, job, how)
        with progress(f"checking {as_typed(self.text.target)} on {self.estimator.card.name}"):
            return self.estimator.estimate_job(job, how)


def job_text(options: argparse.Namespace) -> JobText:
    """Return the job of the command line; its command may follow a `--`."""
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    return JobText.of({**vars(options), "command": words})


def estimate_of(estimator: Estimator, text: JobText, job: Job | None = None, how: RunOptions = AS_USUAL) -> Estimate:
    """Return the estimate of a command; Ctrl-C ends the command early.

    Args:
        estimator: What answers.
        text: The command.
        job: A job made from it, for example of one rank; None: the command's own.
        how: How it is traced.
    """
    from vramcast.tracer.nullgpu.client import NullGpuTracer

    with NullGpuTracer.stoppable() as stop, first_interrupt(stop), progress(f"running {shlex.join(text.command or ())}"):
        return estimator.estimate_job(job or text.job(estimator.named_card), how)
