"""The usual sizes of a batch: all that a registry's model needs for its inputs, which its task determines.

Sizes     as a user gives them; the tracer fills in those left out
Inputs    the tracer's answer, once the model exists: the tensors, the sizes taken, and the adapters
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from vramcast.core.checks import whole
from vramcast.jobs.adapters import ModelAdapters

SIZES: Final = ("batch_size", "seq", "image_size")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a batch. A wrong value raises a UsageError.

    Attributes:
        batch_size: Number of samples; None: the default.
        seq: Length of each sequence: tokens of text, or samples of audio; None: the default of the model's task.
        image_size: Height and width of each image in pixels; None: the default of the model.
        defaults: Names of the sizes that were taken by default; empty before the inputs are made.
        text: The inputs in words, `8 x 1024 tokens`; empty before they are made.
    """

    batch_size: int | None = None
    seq: int | None = None
    image_size: int | None = None
    defaults: tuple[str, ...] = ()
    text: str = ""

    def __post_init__(self) -> None:
        for name in SIZES:
            if (value := getattr(self, name)) is not None:
                option = f"{name} (--{name.replace('_', '-')})"
                object.__setattr__(self, name, whole(option, value, least=1))

    @property
    def asked(self) -> Sizes:
        """The sizes as the user gave them, without those taken by default."""
        return Sizes(**{name: getattr(self, name) for name in SIZES if name not in self.defaults})

    def changed(self, **sizes: Any) -> Sizes:
        """Return the sizes that the user gave, with some replaced."""
        return replace(self.asked, **sizes)

    @property
    def words(self) -> str:
        """The inputs in words, and the sizes taken by default: `8 x 1024 tokens (default batch and length)`."""
        names = [_WORDS[name] for name in SIZES if name in self.defaults]
        listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        return f"{self.text} (default {listed})" if names else self.text


_WORDS: Final = {"batch_size": "batch", "seq": "length", "image_size": "size"}


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a model, made from `Sizes`.

    Attributes:
        batch: As in `Job`.
        labels: As in `Job`; None: the batch holds them, or there are none.
        sizes: The sizes taken; None: the job gave its batch.
        adapted: The adapters of LoRA or QLoRA; None: the job has none.
    """

    batch: Any
    labels: Any
    sizes: Sizes | None
    adapted: ModelAdapters | None = None
