"""The axis `cards`: how many cards share the parameters, gradients and optimizer states of a training job (FSDP2)."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.core.progress import part
from vramcast.estimates.axes.axis import JobAxis
from vramcast.estimates.axes.search import fewest, searched
from vramcast.estimates.result import Estimate, Maker
from vramcast.jobs.commands.reading import read
from vramcast.jobs.job import Command, Job
from vramcast.jobs.parallel import Parallel
from vramcast.jobs.ranks import World
from vramcast.tracer.format.applied_change import applied_change
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions

CARDS: Final = "cards"
PRICE: Final = "{} cards, each with a batch of this size; parameters travel between them"
_MOST: Final = 1024  # arbitrary: some machines have 8 cards, clusters more
_MOST_OF_COMMAND: Final = 8  # arbitrary: of one machine
_CHANGE: Final = "fsdp"


def axis_of_cards(estimate: Estimate) -> JobAxis:
    """Return the axis of a training job on one card.

    Raises:
        UsageError: The job does not train, or has several ranks already.
        CannotEstimate: The command's program has no setting that shards its model.
    """
    job, command = estimate.job, estimate.job.command
    if job.training.mode != "train" or job.parallel is not None or (command is not None and command.world.size > 1):
        raise UsageError("Only a training job on one card can be sharded here: choose another --axis, or leave out --parallel.")
    if command is None:
        return JobAxis(
            CARDS, 1, lambda cards: replace(job, parallel=Parallel("fsdp", World(cards))),
            lambda cards, _: f"--parallel fsdp --world-size {cards}", most=_MOST,
        )  # fmt: skip
    if command.is_code or applied_change(estimate.trace, "batch").owner != "Trainer":
        raise CannotEstimate("it needs other lines of the program: vramcast largest TARGET --axis cards")
    return JobAxis(
        CARDS, 1, lambda cards: _launched(job, command, cards),
        lambda cards, one: f"torchrun --nproc-per-node={cards} and {applied_change(one.trace, _CHANGE).way}",
        lambda cards: RunOptions(changes=((_CHANGE, True),)) if cards > 1 else AS_USUAL, most=_MOST_OF_COMMAND,
    )  # fmt: skip


def traced_over_cards(estimate: Estimate, maker: Maker, traces: int = 3) -> dict[int, tuple[Estimate | CannotEstimate, str]]:
    """Return the estimate of a job over two cards or more, until it fits, and the way to make it, by number of cards.

    Raises:
        UsageError, CannotEstimate: As from `axis_of_cards`.
    """
    axis = axis_of_cards(estimate)
    found: dict[int, tuple[Estimate | CannotEstimate, str]] = {}

    def tried(cards: int) -> Estimate | CannotEstimate:
        with part(f"{CARDS} {cards}", len(found) + 1):
            try:
                one = maker.estimate_job(axis.job_at(cards), axis.options_at(cards))
            except CannotEstimate as error:
                found[cards] = error, ""
            else:
                found[cards] = one, axis.way(cards, one)
        return found[cards][0]

    searched(fewest(2, axis.most or 2, estimate.card.total_bytes, traces), tried)
    return found


def _launched(job: Job, command: Command, cards: int) -> Job:
    words = ("torchrun", f"--nproc-per-node={cards}", *(("-m",) if command.is_module else ()), *command.words)
    started = read(words, os.environ, None, None)
    return replace(job, command=replace(command, environment=started.environment, world=started.world))
