"""Estimate the memory of a training job.

vramcast estimate hf:meta-llama/Llama-3.1-8B --lora r=16 --batch-size 4 --seq 2048 --on h100
vramcast estimate torchvision:vgg16 --batch-size 64 --on rtx4060 --advise
vramcast estimate timm:vit_base_patch16_224 --parallel fsdp --world-size 8 --on a100-40gb
vramcast estimate model.py:tagger --batch 32x256:int64:30000 --labels 32x256x10 --on t4
"""

from __future__ import annotations

import argparse

from vramcast.cli import options as shared
from vramcast.cli import what_if_options
from vramcast.cli.help_text import ANSWER, group
from vramcast.cli.terminal import progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    shared.add_job(parser)
    shared.add_fields(parser, "parallel", "world_size", "nproc_per_node")
    shared.add_output(parser)
    shared.add_files(parser)
    shared.add_details(parser)
    group(parser, ANSWER).add_argument(
        "--advise",
        action="store_true",
        help="also trace variants of the job: checkpointing, precisions, optimizers, half batches, more cards, a pool, "
        "swapping",
    )


def main(options: argparse.Namespace) -> int:
    """Run the verb; see `shared.exit_code`."""
    questions = what_if_options.Questions(options)
    with progress(f"tracing {options.target}"):
        estimate = shared.estimator_of(vars(options)).estimate_job(shared.job_of(options))
    shared.finish_advised(options, estimate, questions)
    return shared.exit_code(estimate)
