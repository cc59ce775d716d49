"""What is learned from: one measured run beside what first principles say of the same job.

Examples are kept as JSON lines, because tracing a job takes a second and learning from it a millisecond.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vramcast.core.errors import DatasetError
from vramcast.core.plain import from_plain, to_plain
from vramcast.datasets.journal import Journal, Rejected, read_lines
from vramcast.learner.features import NAMES

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Example:
    """One run, simulated and measured. Sizes are bytes; unknown is None.

    Attributes:
        id: Of the run.
        group: What is never split between learning and testing: the model.
        family: How its row calls its kind of model, for tables alone: `mlp`, `cnn`, ...; what decides is seen in the features.
        gpu: The card's key.
        stack: Whose context it has: card, driver, CUDA and torch as far as known.
        features: See `vramcast.learner.features`; {} where only peaks and traits are known.
        allocated, reserved: Simulated peaks.
        measured_reserved: None where only the process peak was measured.
        measured_process: With the context.
        censored: The measured peaks are lower bounds.
        optimizer: For tables.
        context: What the process is assumed to take beside the reserved peak, where no stack's is known.
        libraries: Which the job uses, see `vramcast.learner.features.parts_of`.
        ran_at, died_at: The smallest cap of the reserved memory in which the job ran, the largest in which it died.
        is_emulated: Those two are the simulator's.
        facts: For tables.
        traits: Its class, see `vramcast.learner.traits`; {} of an example from before there were any.
        unknown: Kinds of calls which nobody answered.
        card_bytes: The card's size; 0 unknown.
        measured_allocated: The measured peak of live blocks, where somebody noted it.
        tracer, torch, cudnn: Who simulated it: the tracer, its torch, and the cuDNN which was asked; "" unknown, or none was.
    """

    id: str
    group: str
    family: str
    gpu: str
    stack: str
    features: dict[str, float]
    allocated: int
    reserved: int
    measured_reserved: int | None = None
    measured_process: int | None = None
    censored: bool = False
    optimizer: str = ""
    context: int = 0
    libraries: tuple[str, ...] = ()
    ran_at: int | None = None
    died_at: int | None = None
    is_emulated: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    tracer: str = ""
    torch: str = ""
    cudnn: str = ""
    traits: dict[str, str] = field(default_factory=dict)
    unknown: int = 0
    card_bytes: int = 0
    measured_allocated: int | None = None
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.reserved <= 0 or self.allocated <= 0:
            raise DatasetError(
                f"Example '{self.id}' has simulated peaks {self.allocated} and {self.reserved}: above 0 is expected."
            )


def append(examples: Iterable[Example], path: str | os.PathLike[str]) -> None:
    """Add examples to a file.

    Raises:
        DatasetError: it cannot be written.
    """
    with Journal(path) as lines:
        lines.append_all(to_plain(example) for example in examples)


def read(path: str | os.PathLike[str]) -> tuple[list[Example], list[Rejected]]:
    """Return the examples of a file, of equal ids the last, and what is damaged or has other features than this vramcast's.

    Raises:
        DatasetError: the file cannot be read.
    """
    found: dict[str, Example] = {}
    rejected: list[Rejected] = []
    for where, values in read_lines(path):
        if isinstance(values, Rejected):
            rejected.append(values)
            continue
        try:
            example: Any = from_plain(Example, values, "example")
            if example.features and (other := sorted(set(example.features) ^ set(NAMES))):
                raise DatasetError(f"Features of another vramcast ('{other[0][:60]}' is known to one alone): make it again.")
        except DatasetError as error:
            rejected.append(Rejected(where, str(error)))
        else:
            found[example.id] = example
    return list(found.values()), rejected
