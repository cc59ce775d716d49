"""Options which several verbs share, and the `Job` they describe."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from vramcast import report
from vramcast.cli import values, what_if_options
from vramcast.cli.streams import answer, say
from vramcast.cli.terminal import card_bar, painted
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import DEVICES, checked_card_bytes, device
from vramcast.hardware.stack import parse as parse_stack
from vramcast.jobs.commands import BUDGET_S
from vramcast.jobs.job import CHOICES, TRACERS, Job, TensorSpec, Training, Until, current_folder, parse_batch
from vramcast.jobs.parallel import parse as parse_parallel
from vramcast.views import check_path

if TYPE_CHECKING:
    from vramcast.estimates.advice_rows import Advice

_TRAINING: Final = tuple(field.name for field in fields(Training))


def add_output(parser: argparse.ArgumentParser, tracers: Collection[str] = TRACERS) -> None:
    """Add what every verb with an estimate understands; `tracers` are those which it can use."""
    parser.add_argument(
        "--device", default="h200", help=f"the card: {', '.join(DEVICES)}, or a file (card.toml; default: h200)"
    )
    parser.add_argument("--memory", metavar="SIZE", help="the card's size instead of the device's own: 12622168064 or 12GiB")
    parser.add_argument(
        "--alloc-conf",
        metavar="CONF",
        type=str,
        help="PYTORCH_CUDA_ALLOC_CONF of the job, e.g. expandable_segments:True; '': torch's defaults "
        "(default: what the job itself or the environment here says)",
    )
    parser.add_argument(
        "--stack",
        metavar="VERSIONS",
        type=values.checked(parse_stack),
        help="software of the card's machine where it differs from this one: torch==2.8.0, or any of torch==,cudnn==,cuda==",
    )
    parser.add_argument("--tracer", choices=tracers, default="auto")
    parser.add_argument("--artifact", metavar="DIR", help="a learned correction (vramcast train); default: $VRAMCAST_ARTIFACT")
    parser.add_argument("--level", type=float, default=0.99, help="of the upper bound (default: 0.99)")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="SECONDS", help="stop the job after so long")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add what verbs with one estimate understand besides: files to write, and other circumstances."""
    parser.add_argument("--snapshot", metavar="FILE", help="write the allocator's history for pytorch.org/memory_viz")
    add_plot(parser)
    parser.add_argument(
        "--report",
        metavar="FILE",
        type=values.checked(_report_path),
        help="write one page about the job: the answer, the timeline, who holds the bytes, what was assumed (.html)",
    )
    parser.set_defaults(asked=())  # the words of the command line, which the page repeats (main.py)
    what_if_options.add_arguments(parser)


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add --plot."""
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=values.checked(_plot_path),
        help="timeline with the card's line: .png, .html, .txt or .json (Perfetto); '-' prints the text view on stdout "
        "(on stderr with --json)",
    )


def _plot_path(text: str) -> str:
    """Return `text` if a view can be drawn there: better said before the job is traced than after."""
    if text != "-":
        check_path(text)
    return text


def _report_path(text: str) -> str:
    """Return `text` if a report can be written there."""
    report.check_path(text)
    return text


def add_job(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """Add the description of a job by TARGET; `is_optional` where a command may stand in its place."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?" if is_optional else None,
        help="torchvision:NAME, timm:NAME, hf:MODEL_TYPE_OR_CONFIG.json, package.module:factory or file.py:factory",
    )
    parser.add_argument(
        "--batch",
        action="append",
        metavar="SPEC",
        help="an input tensor: 32x3x224x224, 8x128:int64<30522, 8x128:int64=1 (ones), or input_ids=8x128:int64 for a keyword; "
        "8x16..128:int64 where batches are padded to their longest line; repeatable, in order",
    )
    parser.add_argument("--labels", metavar="SPEC", help="what the loss compares with, e.g. 32:int64<1000")
    parser.add_argument("--num-classes", type=int)
    parser.set_defaults(parallel=None, world_size=None, nproc_per_node=None)  # for verbs without these options
    add_training(parser)


def add_training(parser: argparse.ArgumentParser, names: Collection[str] = _TRAINING) -> None:
    """Add an option for each of these fields of `Training`, with its default."""
    for option in (field for field in fields(Training) if field.name in names):
        kind: dict[str, Any] = {"choices": CHOICES.get(option.name)}
        if isinstance(option.default, int | float):
            kind["type"] = type(option.default)
        if isinstance(option.default, bool):
            kind = {"action": argparse.BooleanOptionalAction if option.default else "store_true"}
        parser.add_argument(f"--{option.name.replace('_', '-')}", default=option.default, **kind, **option.metadata)


def add_course(parser: argparse.ArgumentParser) -> None:
    """Add how far a training command is followed."""
    parser.add_argument(
        "--until",
        choices=get_args(Until),
        default="evaluation",
        help="follow the command to its last wanted step, through the evaluation after it (default), or to its end",
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        metavar="SECONDS",
        help=f"which may pass after the last wanted step (default: {BUDGET_S:g}; with --until end as many as it takes)",
    )
    parser.add_argument(
        "--bracket",
        action=argparse.BooleanOptionalAction,
        help="run a job whose peaks the card's speed may change on an infinitely slow card too (default: one of several ranks, "
        "where the first run took less than a minute)",
    )


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add the ranks of a training command."""
    add_world(parser)
    parser.add_argument(
        "--ranks", default="auto", metavar="RANKS", help="which are traced: auto (first and last), all, or 0,7 (default: auto)"
    )


def add_parallel(parser: argparse.ArgumentParser) -> None:
    """Add how a model is spread over ranks."""
    parser.add_argument(
        "--parallel",
        metavar="HOW",
        help="how TARGET is spread over --world-size ranks, each with a batch of its own: ddp, fsdp (FSDP2, block by block), "
        "or hsdp:RxS (R replicas of S shards)",
    )


def add_world(parser: argparse.ArgumentParser) -> None:
    """Add how many ranks a job has."""
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="ranks of the job (default: as a command's launcher, or WORLD_SIZE, says)"
    )
    parser.add_argument(
        "--nproc-per-node", type=int, metavar="M", help="ranks on each machine (default: likewise, else at most 8)"
    )


def job_of(options: argparse.Namespace) -> Job:
    """Return the job which the options describe."""
    return Job(
        device=device(options.device),
        target=options.target,
        batch=parse_batch(options.batch or ()),
        labels=TensorSpec.parse(options.labels) if options.labels is not None else None,
        num_classes=options.num_classes,
        training=Training(**{name: getattr(options, name) for name in _TRAINING}),
        parallel=parse_parallel(options.parallel, options.world_size, options.nproc_per_node),
        alloc_conf=options.alloc_conf,
        stack=options.stack,
        memory_bytes=checked_card_bytes(options.memory) if options.memory is not None else None,
        search_path=("", *sys.path),
        working_folder=current_folder(),
    )


def estimator_of(options: argparse.Namespace) -> Estimator:
    """Return how the options want jobs to be estimated."""
    return Estimator(
        device(options.device), options.tracer, options.level, options.artifact, options.timeout, options.stack,
        getattr(options, "bracket", None),
    )  # fmt: skip


def finish(
    options: argparse.Namespace,
    estimate: Estimate,
    questions: what_if_options.Questions,
    extra: dict[str, Any] | None = None,
    advice: Advice | None = None,
) -> None:
    """Print the estimate, write the files which are wanted, and answer the questions; `advice` is for the report."""
    more, text = write_files(options, estimate, questions, advice)
    if options.json:
        answer(json.dumps({**estimate.to_dict(), **(extra or {}), **more}))
    else:
        answer(bar_of(estimate))
        for line in str(estimate).splitlines():
            answer(painted(line, "yellow", sys.stdout) if line.startswith("warning:") else line)
        answer(text, end="")


def bar_of(estimate: Estimate) -> str:
    """Return the card of an estimate as a bar for stdout."""
    return card_bar(estimate.process, estimate.upper_bound, estimate.job.total_bytes, estimate.verdict, sys.stdout)


def write_files(
    options: argparse.Namespace, estimate: Estimate, questions: what_if_options.Questions, advice: Advice | None = None
) -> tuple[dict[str, Any], str]:
    """Write the snapshot, the view and the report if they are wanted; return the questions' answers as JSON and as text."""
    if options.snapshot:
        estimate.save_snapshot(Path(options.snapshot))
    if options.plot and options.plot != "-":
        estimate.plot(options.plot)
    if options.report:
        report.save(estimate, options.report, advice=advice, command=shlex.join(options.asked))
    more, text = questions.answers(estimate.trace)
    if options.plot == "-" and options.json:
        say(estimate.plot_text(), end="")
    elif options.plot == "-":
        text += estimate.plot_text()
    return more, text
