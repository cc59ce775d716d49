"""One job which is checked: the options which describe it, its estimate, and the verdict."""

from __future__ import annotations

import argparse
from dataclasses import fields

from vramcast.cli import options as shared
from vramcast.cli.terminal import progress
from vramcast.cli.verbs import run
from vramcast.core.errors import UsageError
from vramcast.estimates.result import Estimate
from vramcast.jobs.job import Training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options which describe a job and how it is judged; `command` is what stands behind a `--` (main.py)."""
    shared.add_job(parser, is_optional=True)
    shared.add_parallel(parser)
    shared.add_course(parser)
    shared.add_ranks(parser)
    shared.add_output(parser)
    parser.add_argument("--on", dest="device", metavar="DEVICE", default=argparse.SUPPRESS, help="the same as --device")
    parser.add_argument("--strict", action="store_true", help="exit 4 when the point estimate fits and the bound does not")


def estimate_of(options: argparse.Namespace) -> Estimate:
    """Return the estimate of the job which the options describe, by TARGET or by command.

    Raises:
        UsageError: they describe none.
        CannotEstimate: no number can be given.
    """
    return _of_command(options) if options.command else _of_target(options)


def _of_target(options: argparse.Namespace) -> Estimate:
    if options.ranks != "auto":
        raise UsageError(f"--ranks {options.ranks} is for commands: a model's are chosen by their shards: leave it out.")
    job = shared.job_of(options)
    with progress(f"checking {options.target} on {job.device.name}"):
        return shared.estimator_of(options).estimate_job(job)


def _of_command(options: argparse.Namespace) -> Estimate:
    """Return the estimate of the command, which says itself how it trains.

    Raises:
        UsageError: an option describes a model.
    """
    given = [name for name in ("target", "batch", "labels", "num_classes", "parallel") if getattr(options, name) is not None]
    given += [
        field.name for field in fields(Training) if field.name != "steps" and getattr(options, field.name) != field.default
    ]
    if given:
        named = ", ".join(name.upper() if name == "target" else f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{named}: this describes a model, and a command says itself what it trains: leave it out.")
    if options.tracer not in run.RUN_COMMANDS:
        raise UsageError(f"--tracer {options.tracer} runs models, not commands: leave it out.")
    return run.estimate_of(options, options.command)
