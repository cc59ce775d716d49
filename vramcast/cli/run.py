"""Run an unmodified training script on the null GPU, stop it after --steps optimizer steps, and estimate.

vramcast run --device rtx3090 --steps 3 -- train.py --epochs 10
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import vramcast
from vramcast.cli import options as shared
from vramcast.cli import simulated
from vramcast.devices import checked_card_bytes, device
from vramcast.errors import CannotEstimate, UsageError
from vramcast.estimator import run_job
from vramcast.job import Job, Training, current_folder
from vramcast.tracer.process import checkout_root


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    shared.add_training(parser, ["steps"])
    shared.add_output(parser)
    shared.add_files(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- script.py args", help="the script and its arguments")


def job_of(options: argparse.Namespace) -> Job:
    """Return the job which the options and the command describe."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if command[:1] in (["python"], ["python3"]):
        command = command[1:]
    if not command:
        raise UsageError("No script: write vramcast run [options] -- train.py args.")
    script = Path(command[0])
    if not script.is_file():
        raise UsageError(f"The script '{script}' does not exist: write vramcast run [options] -- train.py args.")
    return Job(
        device=device(options.device),
        script=(str(script), *command[1:]),
        training=Training(steps=options.steps),
        alloc_conf=options.alloc_conf,
        stack=options.stack,
        memory_bytes=checked_card_bytes(options.memory) if options.memory is not None else None,
        search_path=_search_path(),
        working_folder=current_folder(),
    )


def main(options: argparse.Namespace) -> int:
    """Run the verb; 0 when there is an estimate, 3 when the script raised or never stepped."""
    questions = simulated.Questions(options)
    job = job_of(options)
    script = Path(job.script[0]) if job.script else Path()
    with shared.progress(f"running {script.name}"):
        estimate = run_job(
            job, tracer=options.tracer, level=options.level, timeout_s=options.timeout, artifact=options.artifact
        )
    if estimate.steps == 0:
        raise CannotEstimate(
            f"{script} ended without one optimizer step on the GPU: vramcast counts steps of torch.optim optimizers. "
            "Does the script train, on device 'cuda', without spawning processes?"
        )
    shared.finish(options, estimate, questions)
    return 0


def _search_path() -> tuple[str, ...]:
    """Return the import path as `python script.py` has it: without the folder in which `python -m vramcast` was started.

    In a checkout of ours that folder has rooms which would pass for packages: `datasets` for Hugging Face's.
    """
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    ours = {"", current_folder(), str(checkout_root(vramcast))}
    return tuple(entry for entry in sys.path if entry not in ours or entry in named)
