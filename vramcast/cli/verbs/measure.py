"""Measure real training jobs on this machine's GPU and append them to a data set.

    vramcast measure --out runs/ --budget-s 1500
    vramcast measure --out runs/ -- python train.py --epochs 1

The first command runs a seeded list of generated jobs, each in a process of its own, and resumes if started again with the
same --out. The second runs your own script unchanged and adds one row. --dry-run DEVICE runs the list on the null GPU: it
tests the collector and the jobs without a GPU, and measures nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
from dataclasses import fields
from pathlib import Path

from vramcast.cli import values
from vramcast.cli.streams import answer, say
from vramcast.core.errors import UsageError
from vramcast.core.plain import to_plain
from vramcast.datasets.collector.campaign import Campaign, CampaignLimits, say_on_stderr
from vramcast.datasets.collector.machine import DryRun, RealGpu
from vramcast.datasets.collector.script import measure_script
from vramcast.datasets.workloads import workload_list
from vramcast.hardware.cards import device

_LISTED = 1500  # arbitrary: enough for a campaign


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    parser.add_argument("--out", metavar="FOLDER", help="folder for runs.jsonl, histories.jsonl and passport.json")
    parser.add_argument("--list", action="store_true", help="print this part of the list, one job per line, and run nothing")
    parser.add_argument("--seed", type=values.count(0), default=1, help="seed of the list of jobs (default: 1)")
    parser.add_argument(
        "--first", type=values.count(0), default=0, metavar="N", help="start at this job of the list (default: 0)"
    )
    parser.add_argument(
        "--count", type=values.count(1), metavar="N", help="run at most N jobs of the list (default: until the time is up)"
    )
    parser.add_argument(
        "--budget-s", type=values.positive, default=1500.0, metavar="S", help="time for all jobs together (default: 1500)"
    )
    parser.add_argument(
        "--workers", type=values.count(1), default=1, metavar="N", help="jobs on the card at the same time (default: 1)"
    )
    parser.add_argument(
        "--job-timeout", dest="job_timeout_s", type=values.positive, default=300.0, metavar="S",
        help="time limit of each job (default: 300)",
    )  # fmt: skip
    parser.add_argument(
        "--sample-ms", type=values.positive, default=5.0, metavar="MS", help="interval between NVML samples (default: 5)"
    )
    parser.add_argument("--dry-run", metavar="DEVICE", help="run on the null GPU as this device, not on a GPU")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        type=str,
        metavar="[-- COMMAND]",
        help="measure this script instead of the list",
    )


def main(options: argparse.Namespace) -> int:
    """Run the verb; return 0 if all jobs asked for have run, or the exit code of the script."""
    if options.list:
        return _list(options)
    if options.out is None:
        raise UsageError("--out is missing: name a folder for the data set, for example --out runs/.")
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if command:
        if options.dry_run:
            raise UsageError(
                "--dry-run applies to the generated list, not to a script: use vramcast run for a script on the null GPU."
            )
        return measure_script(command, Path(options.out), sample_ms=options.sample_ms)
    machine = functools.partial(DryRun, device(options.dry_run)) if options.dry_run else RealGpu
    limits = CampaignLimits(**{limit.name: getattr(options, limit.name) for limit in fields(CampaignLimits)})
    summary = Campaign(Path(options.out), limits, machine, say_on_stderr()).run()
    if options.json:
        answer(json.dumps({"schema": 1, "out": options.out, **summary.to_dict()}))
        return 0
    facts = summary.to_dict()
    answer(f"{facts['runs']} runs in {facts['seconds']} s: " + ", ".join(f"{n} {s}" for s, n in facts["by_status"].items()))
    for reason, count in facts["skipped"].items():
        say(f"skipped {count}: {reason}")
    answer(f"next shard: --seed {options.seed} --first {facts['next_index']}")
    return 0


def _list(options: argparse.Namespace) -> int:
    for id_, workload in workload_list.workloads(options.seed, options.first, options.count or _LISTED):
        answer(
            json.dumps(
                {"id": id_, **{name: value for name, value in to_plain(workload).items() if value not in (None, [], {})}}
            )
        )
    return 0
