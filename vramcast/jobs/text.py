"""A job as text: from the command line, pyproject.toml, an HTTP body, a row of a data set, or Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from vramcast.core.errors import UsageError
from vramcast.core.location import checkout_root
from vramcast.hardware.cards import DEFAULT, checked_card_bytes, device
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.hardware.stack import parse as parse_stack
from vramcast.jobs.adapters import parse as parse_adapter
from vramcast.jobs.commands.reading import read
from vramcast.jobs.job import Command, Job, TensorSpec, Training, Until, current_folder, parse_batch
from vramcast.jobs.other_packages import folders_with
from vramcast.jobs.parallel import parse as parse_parallel
from vramcast.jobs.ranks import parse_ranks
from vramcast.jobs.sizes import SIZES, Sizes
from vramcast.jobs.targets import REGISTRIES, require_name

BUDGET_S: Final = 30.0  # arbitrary: most scripts evaluate a shortened first epoch in less
_OF_TRAINING: Final = ("optimizer", "lr", "zero_grad", "overlap_inputs")  # what a forward pass does not read
_OF_A_MODEL: Final = ("target", "batch", "labels", *SIZES, "num_classes", "lora", "qlora", "parallel")


def _help(metavar: str, words: str, group: str = "the job") -> dict[str, str]:
    return {"metavar": metavar, "help": words, "group": group}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobText:
    """A job as text, with either a `target` or a `command`; `job` parses it.

    Each other field is an option of the command line and a key of pyproject.toml; the field's metadata holds its help, and the
    group of options in which the help lists it.

    Attributes:
        target: A TARGET, as in `Job`.
        command: The words of a training command as users type it: `train.py args`, `torchrun train.py`, ...
        training: Training settings of a target; for a command, only `steps` counts.
    """

    target: str | None = None
    command: tuple[str, ...] | None = None
    batch: tuple[str, ...] = field(
        default=(),
        metadata=_help(
            "SPEC",
            "an input tensor: 32x3x224x224; 8x128:int64:30522 (values below 30522); 8x128:int64=1 (ones); "
            "input_ids=8x128:int64 (keyword argument); or 8x16..128:int64 (batches padded to their longest sequence, of "
            "16 to 128); repeat for each input, in order",
        ),
    )
    labels: str | None = field(
        default=None, metadata=_help("SPEC", "labels for the loss, e.g. 32:int64:1000 (32 class indices below 1000)")
    )
    num_classes: int | None = field(
        default=None, metadata=_help("N", "classes of a torchvision:, timm: or hf: model (default: the model's own)")
    )
    batch_size: int | None = field(
        default=None, metadata=_help("N", "samples of a batch; the inputs follow from the model's task (default: 8)")
    )
    seq: int | None = field(
        default=None,
        metadata=_help("N", "tokens of a text, or samples of audio (default: 1024 tokens, or the most that the model takes)"),
    )
    image_size: int | None = field(
        default=None, metadata=_help("N", "height and width of an image, in pixels (default: the model's own)")
    )
    training: Training = field(default_factory=Training)
    lora: str | None = field(
        default=None,
        metadata=_help(
            "r=N",
            "train LoRA adapters on a frozen hf: TARGET, through peft: r=16, or "
            "r=16,alpha=32,dropout=0.05,target=q_proj+v_proj (or target=all-linear); what you omit is peft's own default",
        ),
    )
    qlora: str | None = field(
        default=None,
        metadata=_help(
            "r=N",
            "the same, with the frozen linear layers in 4 bits (NF4, double quantization), by bitsandbytes; the other "
            "weights are in float32 as peft prepares them, or in the type of --precision bf16 or fp16",
        ),
    )
    parallel: str | None = field(
        default=None,
        metadata=_help(
            "HOW",
            "how to spread TARGET over --world-size ranks, each with its own batch: ddp, fsdp (FSDP2, block by block), "
            "or hsdp:RxS (R replicas of S shards)",
        ),
    )
    world_size: int | None = field(
        default=None, metadata=_help("N", "number of ranks (default: from a command's launcher, or WORLD_SIZE)")
    )
    nproc_per_node: int | None = field(
        default=None,
        metadata=_help("M", "ranks per machine (default: from a command's launcher, or else at most 8)", "advanced"),
    )
    ranks: str | tuple[int, ...] = field(
        default="auto",
        metadata=_help(
            "RANKS",
            "ranks to trace: auto (the first, the last and all pipeline stages), all, or numbers: 0,7 (default: auto)",
            "advanced",
        ),
    )
    until: Until | None = field(
        default=None,
        metadata={
            "group": "advanced",
            "help": "trace the command up to the last of --steps, through the evaluation after it, or to its end, whatever the "
            "time (default: to its end, within --budget-s)",
        },
    )
    budget_s: float | None = field(
        default=None,
        metadata=_help(
            "SECONDS",
            f"stop the command at most this many seconds after the last of --steps (default: {BUDGET_S:g}; no limit with "
            "--until end)",
            "advanced",
        ),
    )
    precise_values: bool = field(
        default=False,
        metadata={
            "group": "advanced",
            "help": "compute the values of the command's weights in main memory, too, which takes as much of it as on the "
            "card's machine",
        },
    )
    memory: int | str | None = field(
        default=None, metadata=_help("SIZE", "memory of the card, if not its own: 12GiB, or in bytes", "the card")
    )
    alloc_conf: str | None = field(
        default=None,
        metadata=_help(
            "CONF",
            "PYTORCH_CUDA_ALLOC_CONF of the job, e.g. expandable_segments:True; '' selects torch's defaults "
            "(default: the job's own setting, or else this environment's)",
            "advanced",
        ),
    )
    stack: str | Stack | None = field(
        default=None,
        metadata=_help(
            "VERSIONS",
            "versions on the card's machine that differ from this machine's: torch==2.8.0, or any of torch==,cudnn==,cuda==; "
            "transformers==4.51.3 runs with that release if a folder of VRAMCAST_PACKAGES has it",
            "the card",
        ),
    )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> JobText:
        """Return the job of flat values, by the names of these fields and of `Training`'s; other names are ignored.

        Args:
            values: Values by name; None, or an absent name, leaves a field at its default.
        Raises:
            UsageError: A field of `Training` is wrong.
        """

        def said(kind: type) -> dict[str, Any]:
            found = {one.name: values[one.name] for one in fields(kind) if values.get(one.name) is not None}
            return {name: tuple(one) if isinstance(one, list) else one for name, one in found.items()}

        return cls(**said(cls), training=Training(**said(Training)))

    def asked(self) -> JobText:
        """Return this job, asked by a user, who wants each option to have an effect; a past run may have others.

        Raises:
            UsageError: An option has no effect on this kind of job, or the target's library has no such name.
        """
        if self.command is None:
            given = [name for name in ("until", "budget_s", "precise_values") if getattr(self, name) not in (None, False)]
            _refuse(given, "only a command has a course, and weights with values")
            idle = _OF_TRAINING if self.training.mode == "infer" else ()
            _refuse([name for name in idle if name in self.training.changed], "a forward pass (--mode infer) has none")
            if self.target is not None:
                require_name(self.target)
        return self

    def job(self, card: Device | None) -> Job:
        """Return the job on a card, or without a named one, as this process would run it.

        Raises:
            UsageError: A text is malformed, the command runs no Python program, a target has an option for commands, or a
                command has one for targets.
        """
        if self.command is not None:
            self._refuse_options_of_a_model()
            program = read(self.command, os.environ, self.world_size, self.nproc_per_node)
            budget_s = BUDGET_S if self.budget_s is None and self.until != "end" else self.budget_s
            until = self.until or "end"
            ranks = parse_ranks(self.ranks) if isinstance(self.ranks, str) else self.ranks
            program = replace(program, until=until, budget_s=budget_s, ranks=ranks, precise_values=self.precise_values)
            return self.around(card, command=program)
        if self.ranks != "auto":
            raise UsageError(f"--ranks {self.ranks} is for commands; a model's shards determine its ranks. Omit the option.")
        return self.around(
            card,
            target=self.target,
            num_classes=self.num_classes,
            adapter=parse_adapter(self.lora, self.qlora),
            **self._inputs(),
        )

    def _inputs(self) -> dict[str, Any]:
        """Return the fields of `Job` for a model's inputs: the tensors, or the sizes that give them.

        Raises:
            UsageError: A text is malformed, both are given, or neither is and the target is code.
        """
        given = [f"--{name.replace('_', '-')}" for name in SIZES if getattr(self, name) is not None]
        if self.batch and given:
            raise UsageError(f"--batch gives each tensor, and {', '.join(given)} asks for the usual ones: omit one of them.")
        scheme = (self.target or "").partition(":")[0]
        number = self.batch[0] if len(self.batch) == 1 else ""
        if number.isascii() and number.isdecimal() and scheme in REGISTRIES:
            raise UsageError(
                f"--batch {number} is a tensor of {number} numbers: for {number} samples, write --batch-size {number}."
            )
        if self.batch or scheme not in REGISTRIES:
            if given:
                raise UsageError(
                    f"{', '.join(given)} is for the models of {', '.join(REGISTRIES)}, not for '{self.target}', which is code: "
                    "give each input tensor, for example --batch 32x3x224x224."
                )
            return {
                "batch": parse_batch(self.batch),
                "labels": TensorSpec.parse(self.labels) if self.labels is not None else None,
            }
        if self.labels is not None:
            raise UsageError("--labels needs --batch: without it, the model's task gives inputs and labels. Omit --labels.")
        return {"sizes": Sizes(**{name: getattr(self, name) for name in SIZES})}

    def around(self, card: Device | None, *, command: Command | None = None, **runs: Any) -> Job:
        """Return the job of a command, or of the fields of `Job` in `runs`; everything else comes from this text.

        Raises:
            UsageError: A text is malformed.
        """
        stack = parse_stack(self.stack) if isinstance(self.stack, str) else self.stack
        return Job(
            device=device(DEFAULT) if card is None else card,
            has_card=card is not None or self.memory is not None,
            command=command,
            training=self.training,
            parallel=parse_parallel(self.parallel, self.world_size, self.nproc_per_node) if command is None else None,
            alloc_conf=self.alloc_conf,
            stack=stack,
            memory_bytes=checked_card_bytes(self.memory) if self.memory is not None else None,
            search_path=(*folders_with(stack), *_search_path(command, is_target="target" in runs)),
            working_folder=current_folder(),
            **runs,
        )

    def _refuse_options_of_a_model(self) -> None:
        given = [name for name in _OF_A_MODEL if getattr(self, name) not in (None, ())]
        given += [name for name in self.training.changed if name != "steps"]
        _refuse(given, "this describes a model, but the command builds its own model")


def _refuse(given: Sequence[str], why: str) -> None:
    """Raise if fields are given that have no effect on a job of this kind.

    Raises:
        UsageError: Some are.
    """
    if given:
        named = ", ".join(name.upper() if name == "target" else f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{named}: {why}. Omit the option.")


def _search_path(command: Command | None, *, is_target: bool) -> tuple[str, ...]:
    """Return a job's import path: the folders that the job itself puts first, then ours.

    A target is looked up in the current folder first. A model object adds no folder, because the caller has imported its
    modules. A command adds its own PYTHONPATH, but not the folder that only `python -m vramcast` adds: in a checkout, its
    subfolders would be mistaken for packages (`datasets` for Hugging Face's).
    """
    if command is None:
        return ("", *sys.path) if is_target else tuple(sys.path)
    first = [entry for entry in dict(command.environment).get("PYTHONPATH", "").split(os.pathsep) if entry]
    ours = os.environ.get("PYTHONPATH")  # an empty entry means the current folder; an empty text has no entries
    named = [*first, *(ours.split(os.pathsep) if ours else ())]
    only_ours = {"", current_folder(), str(checkout_root())}.difference(named)
    return tuple(dict.fromkeys((*map(os.path.abspath, first), *(entry for entry in sys.path if entry not in only_ours))))
