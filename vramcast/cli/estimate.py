"""Estimate the memory of a training job.

vramcast estimate torchvision:resnet50 --batch 32x3x224x224 --labels '32:int64<1000' --device a100-40gb
vramcast estimate hf:gpt2 --batch 'input_ids=8x1024:int64<50257' --batch 'labels=8x1024:int64<50257' --optimizer adamw
"""

from __future__ import annotations

import argparse

from vramcast.cli import options as shared
from vramcast.cli import simulated
from vramcast.estimator import run_job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    shared.add_job(parser)
    shared.add_output(parser)
    shared.add_files(parser)


def main(options: argparse.Namespace) -> int:
    """Run the verb; 0 when there is an estimate, whether it fits or not."""
    questions = simulated.Questions(options)
    job = shared.job_of(options)
    with shared.progress(f"tracing {options.target}"):
        estimate = run_job(
            job, tracer=options.tracer, level=options.level, timeout_s=options.timeout, artifact=options.artifact
        )
    shared.finish(options, estimate, questions)
    return 0
