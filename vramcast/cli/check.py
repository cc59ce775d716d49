"""Say whether a job fits on a card: exit 0 fits, 1 does not, 4 uncertain (with --strict, or where no bound holds).

vramcast check torchvision:vgg16 --batch 64x3x224x224 --labels '64:int64' --on rtx4060
"""

from __future__ import annotations

import argparse

from vramcast.cli import options as shared
from vramcast.cli import simulated
from vramcast.cli.streams import say
from vramcast.units import gib


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    shared.add_job(parser)
    shared.add_output(parser)
    shared.add_files(parser)
    parser.add_argument("--on", dest="device", metavar="DEVICE", default=argparse.SUPPRESS, help="the same as --device")
    parser.add_argument("--strict", action="store_true", help="exit 4 when the point estimate fits and the bound does not")


def main(options: argparse.Namespace) -> int:
    """Run the verb. Without --strict the point estimate decides, with it the bound must fit too; neither, if none holds."""
    questions = simulated.Questions(options)
    job = shared.job_of(options)
    with shared.progress(f"checking {options.target} on {job.device.name}"):
        estimate = shared.estimator_of(options).of(job)
    if not estimate.point_fits():
        code, verdict = 1, "does not fit"
    elif estimate.open_calls:
        code, verdict = 4, f"uncertain: there is no largest shape, and so no bound, for {', '.join(estimate.open_calls)}"
    elif estimate.fits():
        code, verdict = 0, "fits"
    else:
        code, verdict = (4, "uncertain") if options.strict else (0, "fits, but its upper bound does not")
    shared.finish(options, estimate, questions, {"verdict": verdict})
    bound = "" if estimate.open_calls else f", at most {gib(estimate.upper_bound)} at level {options.level:g}"
    needed = f"needs {gib(estimate.process)}{bound}"
    say(f"{verdict}: {needed}; {job.device.name} has {gib(job.total_bytes)}")
    return code
