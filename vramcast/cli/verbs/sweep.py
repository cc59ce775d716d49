"""Estimate a job over batch sizes or numbers of ranks, or find the largest batch that fits.

    vramcast sweep torchvision:resnet50 --batch-sizes 8..512
    vramcast sweep torchvision:resnet50 --max-batch --on t4
    vramcast sweep hf:gpt2 --parallel fsdp --world-sizes 1..1024

--snapshot, --plot, --report, --what-if and --fragmentation apply to the last size, or to the largest that fits. A range
doubles from its first to its last size (8..512: 8, 16, ..., 512); a list is used as given (8,24,48). With --parallel, the
batch is that of each rank. A size that cannot be estimated (batch normalization raises for a batch of one) has a row with
the reason, and the sweep continues.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from vramcast.cli import options as shared
from vramcast.cli import values, what_if_options
from vramcast.cli.help_text import JOB, group
from vramcast.cli.streams import answer
from vramcast.cli.terminal import progress
from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.core.progress import part
from vramcast.core.units import gib
from vramcast.estimates.axes.search import Ladder, edge, search, searched
from vramcast.hardware.device import Device
from vramcast.jobs.job import Job
from vramcast.jobs.targets import as_typed
from vramcast.tracer.processes.thread_pool import in_parallel

if TYPE_CHECKING:
    from vramcast.estimates.result import Estimate

_MOST_TRACES = 64  # arbitrary: enough for an exact answer in a range of 2^20
_SIZE = r"[0-9]{1,18}"  # an int64 has no more digits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    shared.add_job(parser)
    shared.add_fields(parser, "parallel", "world_size", "nproc_per_node")
    shared.add_output(parser)
    shared.add_files(parser)
    job = group(parser, JOB)
    job.add_argument(
        "--batch-sizes", metavar="RANGE", type=values.valid(parse_sizes), help="batch sizes to estimate: 8..512 or 8,24,48"
    )
    ranks = "numbers of ranks for --parallel ddp or fsdp: 1..1024 or 8,64"
    job.add_argument("--world-sizes", metavar="RANGE", type=values.valid(parse_sizes), help=ranks)
    job.add_argument("--max-batch", action="store_true", help="find the largest batch whose upper bound fits")


def parse_sizes(text: str) -> list[int]:
    """Return the sizes of `8..512` (doubling) or `8,24,48`.

    Raises:
        UsageError: The text has neither form.
    """
    if match := re.fullmatch(rf"({_SIZE})\.\.({_SIZE})", text):
        size, last = int(match[1]), int(match[2])
        if 0 < size <= last:
            sizes = [size]
            while sizes[-1] * 2 < last:
                sizes.append(sizes[-1] * 2)
            return sizes if sizes[-1] == last else [*sizes, last]
    elif re.fullmatch(rf"{_SIZE}(,{_SIZE})*", text) and all(int(n) > 0 for n in text.split(",")):
        return [int(n) for n in text.split(",")]
    raise UsageError(f"'{text}' is not a range or a list: write 8..512 (doubling) or 8,24,48.")


def main(options: argparse.Namespace) -> int:
    """Run the verb; return 1 if --max-batch finds that even a batch of one does not fit."""
    swept = [name for name in ("batch_sizes", "world_sizes") if getattr(options, name)]
    if not options.max_batch and not swept:
        raise UsageError("No sizes are given: add --batch-sizes 8..512, --world-sizes 1..1024, or --max-batch.")
    if options.max_batch and options.batch_sizes:
        raise UsageError("--max-batch searches over batch sizes itself: leave out --batch-sizes or --max-batch.")
    if options.max_batch:
        shared.require_card(vars(options))
    if options.world_sizes and (options.max_batch or options.batch_sizes):
        raise UsageError(
            "--world-sizes uses a single batch: leave out --batch-sizes and --max-batch, or give one --world-size."
        )
    questions = what_if_options.Questions(options)
    estimator = shared.estimator_of(vars(options))
    sized = _of_worlds(options, estimator.named_card) if options.world_sizes else {}
    job = next(iter(sized.values()), None) or shared.job_of(options)
    column, heading = ("world_size", "ranks") if sized else ("batch", "batch")
    if options.batch_sizes:
        sized = {size: job.with_batch(size) for size in parse_sizes(options.batch_sizes)}
    found: dict[int, Estimate | CannotEstimate] = {}

    def run(size: int) -> Estimate | CannotEstimate:
        numbers = (list(sized).index(size) + 1, len(sized)) if size in sized else (len(found) + 1,)
        with part(f"{heading} {size}", *numbers):
            return estimator.try_estimate(sized.get(size) or job.with_batch(size))

    def note(size: int, one: Estimate | CannotEstimate) -> Estimate | CannotEstimate:
        found[size] = one
        if not options.json:
            answer(_row(size, one))
        return one

    if not options.json:
        card = job.device.name if job.has_card else f"as on {job.device.name}: --on CARD adds verdicts"
        answer(f"{heading:>8} {'allocated':>12} {'reserved':>12} {'process':>12} {'bound':>12}   {card}")
    largest = None
    if options.max_batch:
        with progress("searching"):
            values = search(1, Ladder(), job.total_bytes, _MOST_TRACES)
            largest, _ = edge(searched(values, lambda size: note(size, run(size))))
    running = in_parallel(run, list(sized))
    for size in sized:
        with progress("sweeping"):
            one = next(running)
        note(size, one)
    estimated = [(size, one) for size, one in found.items() if not isinstance(one, CannotEstimate)]
    if not estimated:  # all failed: the first error stands for all
        raise next(one for one in found.values() if isinstance(one, CannotEstimate))
    chosen = next((one for size, one in estimated if size == largest), estimated[-1][1])
    more, text = shared.write_files(options, chosen, questions)
    if options.json:
        table = [{**_as_json(one), column: size} for size, one in sorted(found.items(), key=lambda row: row[0])]
        head = {"schema": 1, "target": as_typed(job.target), "device": job.device.key}
        answer(json.dumps({**head, "max_batch": largest, "rows": table, **more}))
    elif options.max_batch:
        answer(f"largest batch whose upper bound fits on {job.device.name}: {largest or 'none, not even 1'}")
    if not options.json:
        answer(text, end="")
    return 1 if options.max_batch and not largest else 0


def _of_worlds(options: argparse.Namespace, card: Device | None) -> dict[int, Job]:
    """Return the job for each number of ranks on the command line.

    Raises:
        UsageError: The kind of parallelism is missing, or already sets its number of ranks.
    """
    if options.world_size is not None:
        raise UsageError("--world-sizes and --world-size are both given: give one of them.")
    if options.parallel is None or options.parallel.startswith("hsdp:"):
        said = "is missing" if options.parallel is None else f"is {options.parallel}, which sets its own number of ranks"
        raise UsageError(f"--parallel {said}: give ddp or fsdp with --world-sizes.")
    text, per_node = shared.text_of(vars(options)), options.nproc_per_node
    sizes = parse_sizes(options.world_sizes)

    def of(size: int) -> Job:
        return replace(text, world_size=size, nproc_per_node=None if per_node is None else min(size, per_node)).job(card)

    return {size: of(size) for size in sizes}


def _as_json(answer: Estimate | CannotEstimate) -> dict[str, object]:
    if isinstance(answer, CannotEstimate):
        return {"error": type(answer).__name__, "message": str(answer)}
    return answer.to_dict()


def _row(size: int, answer: Estimate | CannotEstimate) -> str:
    if isinstance(answer, CannotEstimate):
        return f"{size:>8} {(str(answer).splitlines() or [type(answer).__name__])[0]}"
    sizes = " ".join(f"{gib(n):>12}" for n in (answer.allocated, answer.reserved, answer.process, answer.upper_bound))
    return f"{size:>8} {sizes}   {answer.verdict.value if answer.has_card else ''}".rstrip()
