"""Say whether a job fits on a card: exit 0 fits, 1 does not, 4 uncertain (with --strict, or where no bound holds).

vramcast check torchvision:vgg16 --batch 64x3x224x224 --labels '64:int64' --on rtx4060
vramcast check --on rtx4060 -- train.py --epochs 10
"""

from __future__ import annotations

import argparse
from dataclasses import fields

from vramcast.cli import options as shared
from vramcast.cli import run, simulated
from vramcast.cli.streams import say
from vramcast.errors import UsageError
from vramcast.job import Training
from vramcast.result import Estimate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options; `command` is what stands behind a `--` (main.py)."""
    shared.add_job(parser, is_optional=True)
    shared.add_parallel(parser)
    shared.add_course(parser)
    shared.add_ranks(parser)
    shared.add_output(parser)
    shared.add_files(parser)
    parser.add_argument("--on", dest="device", metavar="DEVICE", default=argparse.SUPPRESS, help="the same as --device")
    parser.add_argument("--strict", action="store_true", help="exit 4 when the point estimate fits and the bound does not")
    parser.epilog = f"Instead of TARGET, behind all options: -- COMMAND: {run.COMMAND_HELP}"


def main(options: argparse.Namespace) -> int:
    """Run the verb. Without --strict the point estimate decides, with it the bound must fit too; neither, if none holds."""
    questions = simulated.Questions(options)
    estimate = _of_command(options) if options.command else _of_target(options)
    if not estimate.point_fits():
        code, verdict = 1, "does not fit"
    elif estimate.open_calls:
        code, verdict = 4, f"uncertain: there is no largest shape, and so no bound, for {', '.join(estimate.open_calls)}"
    elif estimate.course.ended:
        code, verdict = 4, "uncertain: what was reached fits, and the command ended before its time"
    elif options.strict and estimate.course.not_reached:
        code, verdict = 4, f"uncertain: what was reached fits, and this was not: {'; '.join(estimate.course.not_reached)}"
    elif estimate.fits():
        code, verdict = 0, "fits"
    else:
        code, verdict = (4, "uncertain") if options.strict else (0, "fits, but its upper bound does not")
    shared.finish(options, estimate, questions, {"verdict": verdict})
    say(f"{verdict}: {run.needs(estimate)}")
    return code


def _of_target(options: argparse.Namespace) -> Estimate:
    if options.target is None:
        raise UsageError("What shall be checked? Write vramcast check TARGET ..., or vramcast check ... -- train.py args.")
    if options.ranks != "auto":
        raise UsageError(f"--ranks {options.ranks} is for commands: a model's are chosen by their shards: leave it out.")
    job = shared.job_of(options)
    with shared.progress(f"checking {options.target} on {job.device.name}"):
        return shared.estimator_of(options).of(job)


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
    with shared.progress(f"checking {' '.join(options.command[:1])}"):
        return run.estimate_of(options, options.command)
