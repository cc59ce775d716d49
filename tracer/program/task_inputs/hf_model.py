"""A model of transformers as its inputs see it: its class's task, its configuration, and the arguments of its forward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch

from vramcast.core.errors import UsageError
from vramcast.jobs.job import Job, TensorSpec
from vramcast.jobs.sizes import Sizes
from vramcast.jobs.targets import as_typed
from vramcast.tracer.program.task_inputs.taken import BatchSizes

SEQ: Final = 1024  # spec: trl 0.25, SFTConfig.max_length; transformers' run_summarization.py: max_source_length
# Arguments of a forward that carry a modality.
_TENSORS: Final = (
    "input_ids", "pixel_values", "pixel_values_videos", "input_features", "input_values", "bbox", "past_values",
)  # fmt: skip
_EXAMPLES: Final = {"input_ids": "8x1024:int64", "pixel_values": "8x3x224x224", "input_values": "8x320000"}


@dataclass(frozen=True, slots=True)
class HfModel:
    """A built model of transformers.

    Attributes:
        model: The module, without an adapter around it.
        taken: The sizes of its batch.
        target: The TARGET, as it was typed.
        is_training: Whether the job trains, so that the batch has labels.
    """

    model: Any
    taken: BatchSizes
    target: str
    is_training: bool

    @classmethod
    def of(cls, model: Any, job: Job) -> HfModel:
        """Return the model of a job; adapters of peft take the inputs of the model inside."""
        target = as_typed(job.target) or ""
        inside = model.get_base_model() if hasattr(model, "get_base_model") else model
        return cls(inside, BatchSizes(job.sizes or Sizes(), target), target, job.training.mode == "train")

    @property
    def config(self) -> Any:
        """The configuration of the whole model."""
        return self.model.config

    @property
    def text(self) -> Any:
        """The configuration of its text model."""
        return self.config.get_text_config()

    @property
    def class_name(self) -> str:
        """The name of its class."""
        return type(self.model).__name__

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The arguments of its forward."""
        return inspect.signature(self.model.forward).parameters

    def takes(self, *names: str) -> bool:
        """Return whether its forward has all these arguments."""
        return all(name in self.parameters for name in names)

    def is_for(self, *tasks: str) -> bool:
        """Return whether its class is the one of a task, by transformers' own mapping: `CAUSAL_LM`."""
        from transformers.models.auto import modeling_auto

        for task in tasks:
            for found in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}).values():
                if self.class_name == found or (isinstance(found, tuple | list) and self.class_name in found):
                    return True
        return False

    @property
    def labels_wanted(self) -> bool:
        """True if the batch needs labels, for the model's own loss."""
        return self.is_training and self.takes("labels")

    # -------------------------------------------------------------------------------------------- parts of a batch
    def floats(self, *shape: int) -> TensorSpec:
        """Return a tensor in the type of the model's weights."""
        return TensorSpec(shape, str(self.model.dtype))

    def tokens(self, *shape: int) -> TensorSpec:
        """Return ids of the vocabulary."""
        return TensorSpec(shape, "int64", high=self.vocabulary)

    def classes(self, *shape: int) -> TensorSpec:
        """Return indices of the model's classes, or values if it has only one."""
        n_classes = self.config.num_labels
        return self.floats(*shape) if n_classes == 1 else TensorSpec(shape, "int64", high=n_classes)

    @property
    def vocabulary(self) -> int:
        """The number of token ids."""
        return int(next(size for config in (self.text, self.config) if (size := getattr(config, "vocab_size", None))))

    def positions(self, config: Any) -> int | None:
        """Return the most tokens that a text model has positions for; None: it names no limit."""
        named = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "max_seq_len"))
        most = next((int(found) for found in named if isinstance(found, int) and found > 0), None)
        offsets = [
            module.padding_idx + 1  # RoBERTa counts positions from the padding token's id on
            for name, module in self.model.named_modules()
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
        ]
        return most if most is None else most - max(offsets, default=0)

    def length(self, config: Any, *, at_least: int = 0) -> int:
        """Return the number of tokens of each text: as asked, or else by default.

        Args:
            config: The configuration of the model that reads them.
            at_least: The number of other tokens among them, of images.
        Raises:
            UsageError: The model has no room for as many, or not as many have room for the images.
        """
        most = self.positions(config)
        usual = max(SEQ, at_least + SEQ // 8)
        length = self.taken.take("seq", usual if most is None else min(usual, most))
        if most is not None and length > most and self._has_learned_positions():
            raise UsageError(f"--seq is {length}, but {self.target} has positions for {most} tokens: use at most {most}.")
        if length <= at_least:
            raise UsageError(
                f"--seq is {length}, but an image takes {at_least} tokens of {self.target}: use {at_least + 1} at least."
            )
        return length

    def _has_learned_positions(self) -> bool:
        return any(
            isinstance(module, torch.nn.Embedding) and ("position" in name or name.endswith("wpe"))
            for name, module in self.model.named_modules()
        )

    def refuse(self, why: str) -> NoReturn:
        """Raise because the inputs cannot be derived.

        Raises:
            UsageError: Always; it names the reason, and shows the arguments that the model takes.
        """
        named = [name for name in _TENSORS if self.takes(name)] or list(self.parameters)[:1]
        lines = " ".join(f"--batch '{name}={_EXAMPLES.get(name, 'SHAPE')}'" for name in named)
        raise UsageError(
            f"The inputs of {self.target} ({self.class_name}) do not follow from its name: {why}. Give each tensor of its "
            f"forward, for example {lines}" + (" --batch 'labels=8x1024:int64'." if self.takes("labels") else ".")
        )
