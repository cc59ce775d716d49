"""The sizes of a batch while its tensors are made: as asked, or else by default."""

from __future__ import annotations

import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from vramcast.core.errors import UsageError
from vramcast.jobs.job import Batch, TensorSpec
from vramcast.jobs.sizes import SIZES, Inputs, Sizes

BATCH_SIZE: Final = 8  # spec: transformers 5.17, TrainingArguments.per_device_train_batch_size


@dataclass(slots=True)
class BatchSizes:
    """The sizes of one batch.

    Attributes:
        asked: The sizes as the user gave them.
        model: The model's name, for messages.
        sizes: The sizes taken so far, by name.
    """

    asked: Sizes
    model: str
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        """The number of samples."""
        return self.take("batch_size", BATCH_SIZE)

    def take(self, name: str, default: int) -> int:
        """Return a size: as asked, or else the default."""
        value = getattr(self.asked, name)
        self.sizes[name] = default if value is None else value
        return self.sizes[name]

    def image(self, height: int, width: int | None = None) -> tuple[int, int]:
        """Return height and width of an image: the size asked for, or else these."""
        asked = self.asked.image_size
        self.sizes["image_size"] = asked or min(height, width or height)
        return (height, width or height) if asked is None else (asked, asked)

    def inputs(self, batch: Batch, labels: Batch, text: str) -> Inputs:
        """Return the inputs.

        Args:
            batch: The inputs of the model.
            labels: The labels outside of the batch, if there are any.
            text: The inputs in words.
        Raises:
            UsageError: A size was given that the model has no use for.
        """
        unused = [name for name in SIZES if getattr(self.asked, name) is not None and name not in self.sizes]
        if unused:
            given = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise UsageError(f"{given} has no meaning for {self.model}, which takes {text}: omit it.")
        defaults = tuple(name for name in self.sizes if getattr(self.asked, name) is None)
        return Inputs(batch, labels, Sizes(**self.sizes, defaults=defaults, text=text))


def floats(shape: tuple[int, ...], values: Iterable[float]) -> TensorSpec:
    """Return a tensor of floats with these values."""
    return TensorSpec(shape, content=array.array("f", values).tobytes())


def integers(shape: tuple[int, ...], values: Iterable[int]) -> TensorSpec:
    """Return a tensor of 64-bit integers with these values."""
    return TensorSpec(shape, "int64", content=array.array("q", values).tobytes())


def several(n: int, what: str) -> str:
    """Return a number of things in words: `1 image`, `8 images`."""
    return f"{n} {what}{'' if n == 1 else 's'}"
