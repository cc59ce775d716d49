"""Training examples: measured runs with the simulation of the same jobs.

Examples are stored as JSON lines, because tracing a job takes a second and learning from it a millisecond.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vramcast.core.errors import DatasetError
from vramcast.core.plain import from_plain, to_plain
from vramcast.datasets.journal import Journal, RejectedRow, read_lines
from vramcast.learner.features import NAMES

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Example:
    """One run, simulated and measured. Sizes are bytes; unknown is None.

    Attributes:
        id: Id of the run.
        group: The model, whose runs are never split between training and testing.
        family: The row's own name of the kind of model, for tables only: `mlp`, `cnn`, ...; the features decide.
        gpu: The card's key.
        stack: The stack that decides its context: card, driver, CUDA and torch as far as known.
        features: See `vramcast.learner.features`; {} if only peaks and traits are known.
        allocated, reserved: Simulated peaks.
        measured_reserved: None if only the process peak was measured.
        measured_process: Includes the context.
        censored: The measured peaks are lower bounds.
        at_most: Upper end of the reserved peak of a censored run: the same job is known to run with less.
        optimizer: For tables.
        context: The assumed memory of the process outside the reserved peak, used if no stack's context is known.
        libraries: Libraries that the job uses, see `vramcast.learner.features.parts_of`.
        ran_at, died_at: The smallest cap of the reserved memory at which the job succeeded, the largest at which it died.
        is_emulated: Those two are simulated.
        facts: For tables.
        traits: Its class, see `vramcast.learner.traits`; {} in an example older than traits.
        unknown: Kinds of unanswered calls.
        card_bytes: The card's size; 0: unknown.
        measured_allocated: The measured peak of live blocks, if recorded.
        larger: The simulated reserved peak with the plans of a second cuDNN; None: no second one was queried.
        larger_allocated: The simulated peak of live blocks with those plans; None: as above.
        other_cudnn: The cuDNN of `larger`.
        without_workspaces: The simulated reserved peak without the workspaces of convolutions; None: it has none, or unknown.
        tracer, torch, cudnn: The source of the simulation: the tracer, its torch, and the cuDNN that answered; "": unknown,
            or none.
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
    larger: int | None = None
    larger_allocated: int | None = None
    other_cudnn: str = ""
    without_workspaces: int | None = None
    at_most: int | None = None
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.reserved <= 0 or self.allocated <= 0:
            raise DatasetError(
                f"Example '{self.id}' has simulated peaks {self.allocated} and {self.reserved}, but both must be above 0: "
                "leave it out, or estimate it again."
            )


def append(examples: Iterable[Example], path: str | os.PathLike[str]) -> None:
    """Append examples to a file.

    Raises:
        DatasetError: It cannot be written.
    """
    with Journal(path) as lines:
        lines.append_all(to_plain(example) for example in examples)


def read(path: str | os.PathLike[str]) -> tuple[list[Example], list[RejectedRow]]:
    """Return the examples of a file, of equal ids the last, and the rows that are damaged or have other features.

    Raises:
        DatasetError: The file cannot be read.
    """
    found: dict[str, Example] = {}
    rejected: list[RejectedRow] = []
    for where, values in read_lines(path):
        if isinstance(values, RejectedRow):
            rejected.append(values)
            continue
        try:
            example: Any = from_plain(Example, values, "example")
            if example.features and (other := sorted(set(example.features) ^ set(NAMES))):
                raise DatasetError(
                    "The features are of another version of vramcast (only one of the two has "
                    f"'{other[0][:60]}'): make the example again."
                )
        except DatasetError as error:
            rejected.append(RejectedRow(where, str(error)))
        else:
            found[example.id] = example
    return list(found.values()), rejected
