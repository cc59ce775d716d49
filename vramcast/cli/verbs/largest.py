"""Find the largest batch, prompt, length or rank that fits on a card, for a model or an unmodified command.

    vramcast largest hf:gpt2 --on t4
    vramcast largest --on rtx4090 -- python train.py --epochs 10
    vramcast largest --axis prompt --on rtx4090 -- python generate.py
    vramcast largest --axis batch=--bs --steps pow2 --on h100 -- python train.py --bs 32

Two traces predict the edge, and the next ones are on both sides of it. A command's batch is changed while it runs: in its
data loaders, TrainingArguments or Ultralytics' settings. If it makes its batches by hand, name what sets them: an option
(batch=--bs), a variable (batch=env:BS), or a key of a YAML or JSON file (batch=config.yaml:train.batch_size).
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Final

from vramcast.cli import checked_job
from vramcast.cli.checked_job import CheckedJob
from vramcast.cli.help_text import ADVANCED, JOB, group
from vramcast.cli.streams import answer
from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.core.progress import one_output
from vramcast.core.units import gib

if TYPE_CHECKING:
    from vramcast.estimates.result import Estimate

_AXES: Final = "batch; accumulate (the largest batch at the present global batch); lora-rank; cards (the fewest, by FSDP2)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options; `command` holds the words after `--` (main.py)."""
    group(parser, JOB).add_argument(
        "--axis",
        default="batch",
        help=f"what to enlarge: {_AXES}; of a model seq and image-size; of a command prompt, or NAME=WHAT SETS IT",
    )
    group(parser, JOB).add_argument(
        "--steps", dest="ladder", choices=("1", "8", "pow2"), default="1",
        help="the values tried: all, multiples of 8, or powers of two",
    )  # fmt: skip
    group(parser, ADVANCED).add_argument("--traces", type=int, default=5, metavar="N", help="the most traces (default: 5)")
    checked_job.add_arguments(parser, without=("steps",))
    parser.epilog = f"Instead of TARGET, after all options: -- COMMAND: {checked_job.COMMAND_HELP}"


@one_output()
def main(options: argparse.Namespace) -> int:
    """Run the verb."""
    from vramcast.estimates.largest import largest, require_axis

    if options.target is None and not options.command:
        raise UsageError("No job is given: write a TARGET, or a command after --, as in vramcast largest --on t4 -- train.py.")
    if options.axis == "seq" and options.command:
        options.axis = "prompt"  # its former name, of commands
    job = CheckedJob.of({**vars(options), "command": options.command or None})
    require_axis(job.job(), options.axis)
    own = job.estimate()

    def note(value: int, one: Estimate | CannotEstimate) -> None:
        if not options.json:
            answer(_row(value, one))

    if not options.json:
        answer(f"{options.axis.partition('=')[0]:>10} {'process':>12} {'bound':>12}   {own.job.device.name}")
    found = largest(own, options.axis, steps=options.ladder, traces=options.traces, note=note, trace=job.trace)
    answer(json.dumps({"schema": 1, "device": own.job.device.key, **found.to_dict()}) if options.json else found.words)
    return found.exit_code


def _row(value: int, one: Estimate | CannotEstimate) -> str:
    if isinstance(one, CannotEstimate):
        return f"{value:>10,} {(str(one).splitlines() or [type(one).__name__])[0]}"
    return f"{value:>10,} {gib(one.process):>12} {gib(one.upper_bound):>12}   {one.verdict.value}"
