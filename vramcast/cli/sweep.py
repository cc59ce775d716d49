"""Estimate a job over batch sizes, or find the largest which fits.

    vramcast sweep torchvision:resnet50 --batch 1x3x224x224 --labels 1:int64 --batch-sizes 8..512
    vramcast sweep torchvision:resnet50 --batch 1x3x224x224 --labels 1:int64 --max-batch --on rtx4090

--snapshot, --plot, --what-if and --fragmentation are about the last size, or the largest which fits.
A range doubles from its first to its last size (8..512: 8, 16, ..., 512); a list is taken as it is (8,24,48).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

from vramcast.cli import options as shared
from vramcast.cli import simulated
from vramcast.errors import UsageError
from vramcast.estimator import run_job
from vramcast.result import Estimate
from vramcast.units import gib

_MAX_BATCH = 1 << 20  # arbitrary: where the search for the largest batch gives up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    shared.add_job(parser)
    shared.add_output(parser)
    shared.add_files(parser)
    parser.add_argument("--batch-sizes", metavar="RANGE", help="8..512 or 8,24,48")
    parser.add_argument("--max-batch", action="store_true", help="find the largest batch whose upper bound fits")
    parser.add_argument("--on", metavar="DEVICE", help="the card; the same as --device")


def parse_sizes(text: str) -> list[int]:
    """Return the batch sizes of `8..512` (doubling) or `8,24,48`."""
    if match := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        size, last = int(match[1]), int(match[2])
        if 0 < size <= last:
            sizes = [size]
            while sizes[-1] * 2 < last:
                sizes.append(sizes[-1] * 2)
            return sizes if sizes[-1] == last else [*sizes, last]
    elif re.fullmatch(r"\d+(,\d+)*", text) and all(int(n) > 0 for n in text.split(",")):
        return [int(n) for n in text.split(",")]
    raise UsageError(f"--batch-sizes '{text}' is not understood: write 8..512 (doubling) or 8,24,48.")


def main(options: argparse.Namespace) -> int:
    """Run the verb; with --max-batch 1 when not even a batch of one fits."""
    if options.on:
        options.device = options.on
    if not options.max_batch and not options.batch_sizes:
        raise UsageError("Give --batch-sizes 8..512, or --max-batch.")
    questions = simulated.Questions(options)
    job = shared.job_of(options)
    sizes = [] if options.max_batch else parse_sizes(options.batch_sizes)
    rows: list[tuple[int, Estimate]] = []

    def estimate(size: int) -> Estimate:
        with shared.progress(f"batch {size}"):
            found = run_job(
                job.with_batch(size),
                tracer=options.tracer,
                level=options.level,
                timeout_s=options.timeout,
                artifact=options.artifact,
            )
        rows.append((size, found))
        if not options.json:
            print(_row(size, found), flush=True)
        return found

    if not options.json:
        print(
            f"{'batch':>8} {'allocated':>12} {'reserved':>12} {'process':>12} {'bound':>12}   {job.device.name}",
            flush=True,
        )
    largest = _search(estimate) if options.max_batch else None
    if not options.max_batch:
        for size in sizes:
            estimate(size)
    chosen = next((found for size, found in rows if size == largest), rows[-1][1])
    more, text = shared.write_files(options, chosen, questions)
    if options.json:
        table = [{"batch": size, **found.to_dict()} for size, found in sorted(rows, key=lambda row: row[0])]
        print(
            json.dumps(
                {"schema": 1, "target": job.target, "device": job.device.key, "max_batch": largest, "rows": table, **more}
            )
        )
    elif options.max_batch:
        print(
            f"largest batch whose bound at level {options.level:g} fits on {job.device.name}: {largest or 'none, not even 1'}"
        )
    if not options.json:
        shared.print_chart(text, sys.stdout)
    return 1 if options.max_batch and not largest else 0


def _search(estimate: Any) -> int:
    """Return the largest batch size which fits, by doubling and bisection; 0 when none does.

    Takes it that a larger batch never needs less, which workspaces may break by a little: the answer fits, and the next
    larger size tried did not.
    """
    fits, too_big = 0, 1
    while too_big <= _MAX_BATCH and estimate(too_big).fits():
        fits, too_big = too_big, too_big * 2
    while too_big - fits > 1:
        middle = (fits + too_big) // 2
        if estimate(middle).fits():
            fits = middle
        else:
            too_big = middle
    return fits


def _row(size: int, found: Estimate) -> str:
    sizes = " ".join(f"{gib(n):>12}" for n in (found.allocated, found.reserved, found.process, found.upper_bound))
    return f"{size:>8} {sizes}   {'fits' if found.fits() else 'uncertain' if found.point_fits() else 'does not fit'}"
