"""A job as people write it: on the command line, in pyproject.toml, in an HTTP body, in a row of a data set, in Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from vramcast.core.errors import UsageError
from vramcast.core.location import checkout_root
from vramcast.hardware.cards import checked_card_bytes
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.hardware.stack import parse as parse_stack
from vramcast.jobs.commands.reading import read
from vramcast.jobs.job import Command, Job, TensorSpec, Training, Until, current_folder, parse_batch
from vramcast.jobs.parallel import parse as parse_parallel
from vramcast.jobs.ranks import parse_ranks

BUDGET_S: Final = 30.0  # arbitrary: most scripts evaluate their first epoch in less, once it is cut short
_OF_A_MODEL: Final = ("target", "batch", "labels", "num_classes", "parallel")


def _help(metavar: str, words: str) -> dict[str, str]:
    return {"metavar": metavar, "help": words}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobText:
    """A job in words; `job` reads them. Either `target` or `command` says what runs.

    Each other field is an option of the command line, whose help the field's metadata has, and a key of pyproject.toml.

    Attributes:
        target: As in `Job`.
        command: The words of a training command as people type it: `train.py args`, `torchrun train.py`, ...
        training: How a target is trained; of a command only `steps` counts.
    """

    target: str | None = None
    command: tuple[str, ...] | None = None
    batch: tuple[str, ...] = field(
        default=(),
        metadata=_help(
            "SPEC",
            "an input tensor: 32x3x224x224, 8x128:int64<30522, 8x128:int64=1 (ones), or input_ids=8x128:int64 for a keyword; "
            "8x16..128:int64 where batches are padded to their longest line; repeatable, in order",
        ),
    )
    labels: str | None = field(default=None, metadata=_help("SPEC", "what the loss compares with, e.g. 32:int64<1000"))
    num_classes: int | None = None
    training: Training = field(default_factory=Training)
    parallel: str | None = field(
        default=None,
        metadata=_help(
            "HOW",
            "how TARGET is spread over --world-size ranks, each with a batch of its own: ddp, fsdp (FSDP2, block by block), "
            "or hsdp:RxS (R replicas of S shards)",
        ),
    )
    world_size: int | None = field(
        default=None, metadata=_help("N", "ranks of the job (default: as a command's launcher, or WORLD_SIZE, says)")
    )
    nproc_per_node: int | None = field(
        default=None, metadata=_help("M", "ranks on each machine (default: likewise, else at most 8)")
    )
    ranks: str | tuple[int, ...] = field(
        default="auto", metadata=_help("RANKS", "which are traced: auto (first and last), all, or 0,7 (default: auto)")
    )
    until: Until = field(
        default="evaluation",
        metadata={
            "help": "follow the command to its last wanted step, through the evaluation after it (default), or to its end"
        },
    )
    budget_s: float | None = field(
        default=None,
        metadata=_help(
            "SECONDS",
            f"which may pass after the last wanted step (default: {BUDGET_S:g}; with --until end as many as it takes)",
        ),
    )
    memory: int | str | None = field(
        default=None, metadata=_help("SIZE", "the card's size instead of the device's own: 12622168064 or 12GiB")
    )
    alloc_conf: str | None = field(
        default=None,
        metadata=_help(
            "CONF",
            "PYTORCH_CUDA_ALLOC_CONF of the job, e.g. expandable_segments:True; '': torch's defaults "
            "(default: what the job itself or the environment here says)",
        ),
    )
    stack: str | Stack | None = field(
        default=None,
        metadata=_help(
            "VERSIONS",
            "software of the card's machine where it differs from this one: torch==2.8.0, or any of torch==,cudnn==,cuda==",
        ),
    )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> JobText:
        """Return the job that flat values give, by the names of these fields and of `Training`'s; others are not read.

        Args:
            values: None, or an absent name, leaves a field at its default.
        Raises:
            UsageError: a field of `Training` is wrong.
        """

        def said(kind: type) -> dict[str, Any]:
            found = {one.name: values[one.name] for one in fields(kind) if values.get(one.name) is not None}
            return {name: tuple(one) if isinstance(one, list) else one for name, one in found.items()}

        return cls(**said(cls), training=Training(**said(Training)))

    def job(self, device: Device) -> Job:
        """Return the job on a card, as this process would run it.

        Raises:
            UsageError: a text is not understood; the command runs no Python program; a target has an option of commands, or a
                command one of targets.
        """
        if self.command is not None:
            self._refuse_options_of_a_model()
            program = read(self.command, os.environ, self.world_size, self.nproc_per_node)
            budget_s = BUDGET_S if self.budget_s is None and self.until != "end" else self.budget_s
            ranks = parse_ranks(self.ranks) if isinstance(self.ranks, str) else self.ranks
            return self.around(device, command=replace(program, until=self.until, budget_s=budget_s, ranks=ranks))
        if self.ranks != "auto":
            raise UsageError(f"--ranks {self.ranks} is for commands: a model's are chosen by their shards: leave it out.")
        return self.around(
            device,
            target=self.target,
            batch=parse_batch(self.batch),
            labels=TensorSpec.parse(self.labels) if self.labels is not None else None,
            num_classes=self.num_classes,
        )

    def around(self, device: Device, *, command: Command | None = None, **runs: Any) -> Job:
        """Return the job of a command, or of what `runs` gives as fields of `Job`; everything else is as this text says.

        Raises:
            UsageError: a text is not understood.
        """
        return Job(
            device=device,
            command=command,
            training=self.training,
            parallel=parse_parallel(self.parallel, self.world_size, self.nproc_per_node) if command is None else None,
            alloc_conf=self.alloc_conf,
            stack=parse_stack(self.stack) if isinstance(self.stack, str) else self.stack,
            memory_bytes=checked_card_bytes(self.memory) if self.memory is not None else None,
            search_path=_search_path(command, is_target="target" in runs),
            working_folder=current_folder(),
            **runs,
        )

    def _refuse_options_of_a_model(self) -> None:
        given = [name for name in _OF_A_MODEL if getattr(self, name) not in (None, ())]
        given += [name for name in self.training.changed if name != "steps"]
        if given:
            named = ", ".join(name.upper() if name == "target" else f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{named}: this describes a model, and a command says itself what it trains: leave it out.")


def _search_path(command: Command | None, *, is_target: bool) -> tuple[str, ...]:
    """Return a job's import path: the folders that the job itself puts first, then ours.

    A target comes from the current folder first. A model in the caller's hands adds none: its modules are those that the caller
    has imported. A command adds its own PYTHONPATH, and its interpreter has nothing that only `python -m vramcast` puts there:
    in a checkout, that folder has subfolders that would pass for packages, `datasets` for Hugging Face's.
    """
    if command is None:
        return ("", *sys.path) if is_target else tuple(sys.path)
    first = [entry for entry in dict(command.environment).get("PYTHONPATH", "").split(os.pathsep) if entry]
    ours = os.environ.get("PYTHONPATH")  # an empty entry in it is the current folder; an empty text has no entries
    named = [*first, *(ours.split(os.pathsep) if ours else ())]
    only_ours = {"", current_folder(), str(checkout_root())}.difference(named)
    return tuple(dict.fromkeys((*map(os.path.abspath, first), *(entry for entry in sys.path if entry not in only_ours))))
