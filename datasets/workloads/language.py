"""Draws of Hugging Face models from their configs: text, images, sound, up to a few billion parameters."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vramcast.datasets.run import Workload
from vramcast.datasets.workloads.sampling import Draw
from vramcast.datasets.workloads.sizes import LENGTHS, WIDEST, draw_batch, draw_budget, draw_fitting, largest
from vramcast.datasets.workloads.training_options import draw_training


@dataclass(frozen=True, slots=True)
class _Type:
    """A model type of transformers, and the names in its config.

    Attributes:
        names: Config entry -> its meaning: width, depth, heads, groups (of keys and values), inner, head, vocabulary,
            tokens (the longest text).
        config: Constant entries.
        unset: Entries that are None.
        stacks: Number of stacks of `depth` layers each; an encoder and a decoder are two.
        gated: Whether the feed-forward network has three matrices.
        untied: Whether the output has its own matrix.
        length: Tokens of every sample, if it does not depend on a text's length.
    """

    names: dict[str, str]
    config: dict[str, Any] = field(default_factory=dict)
    unset: Sequence[str] = ()
    stacks: int = 1
    gated: bool = False
    untied: bool = False
    length: int = 0


_MORE_PLACES = 8  # arbitrary: RoBERTa's position table keeps the first two for padding
_TABLE: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _types(kind: str) -> dict[str, _Type]:
    """Return the model types of one kind, in the table's order."""
    names, types = _TABLE["names"], _TABLE[kind]
    return {
        name: _Type(**{**row, "names": {entry: what for one in row["names"] for entry, what in names[one].items()}})
        for name, row in types.items()
    }


TEXT_TYPES: Final = _types("text")
IMAGE_TYPES: Final = _types("image")
TYPES: Final = {**TEXT_TYPES, **IMAGE_TYPES, **_types("sound")}

_SAMPLES = 80_000  # arbitrary: 5 s of sound at 16 kHz
_VOCABULARIES = (8000, 30_522, 50_257, 128_256)  # arbitrary: BERT's, GPT-2's and Llama 3's among them
# arbitrary: wide rather than deep: a dry run's time depends on the number of operators
_DEPTHS = {1: 20, 2: 35, 3: 15, 4: 20, 6: 10}


@dataclass(frozen=True, slots=True)
class _Shape:
    kind: str
    width: int
    depth: int
    heads: int
    groups: int
    inner: int
    vocabulary: int

    @property
    def parameters(self) -> float:
        """The approximate number of parameters."""
        kind = TYPES[self.kind]
        attention = (2 + 2 * self.groups / self.heads) * self.width**2 * (1.5 if kind.stacks == 2 else 1)
        feedforward = (3 if kind.gated else 2) * self.width * self.inner
        words = self.vocabulary * self.width * (2 if kind.untied else 1)
        return words + kind.stacks * self.depth * (attention + feedforward)

    def elements(self, tokens: int, eager: bool, checkpointing: bool) -> float:
        """Return roughly how many elements a sample of this many tokens keeps for backward, with its scores over words."""
        kind = TYPES[self.kind]
        layer: float = tokens * (10 * self.width + (4 if kind.gated else 3) * self.inner)
        layer += 3.25 * self.heads * tokens**2 if eager else 0
        kept = tokens * self.width * self.depth + layer if checkpointing else layer * self.depth
        sound = _SAMPLES / 5 * 2 * 512 * 3 if self.kind == "wav2vec2" else 0  # its convolutions: strides 5, 2, 2, ...
        return kind.stacks * kept + 4 * tokens * self.vocabulary + sound


def draw_hugging_face(draw: Draw) -> Workload:
    """Return the training of a Hugging Face model with random weights: a random width, or a published shape."""
    drawn_kind = draw.weighted({"random": 75, "known": 20, "large": 5})
    large = drawn_kind == "large"
    published = _Shape(*draw.choice(_TABLE["large" if large else "known"])) if drawn_kind != "random" else None
    training = draw_training(draw, checkpoints=True, low=large)
    budget = draw_budget(draw)
    shape = published or _draw_shape(draw, budget.parameters(training.bytes_per_parameter))
    kind = TYPES[shape.kind]
    attention = draw.weighted({"": 60, "eager": 40}) if shape.kind not in ("t5", "bloom") else ""
    eager = bool(attention) or shape.kind in ("t5", "bloom")

    def sample_bytes(tokens: int) -> float:
        return shape.elements(tokens, eager, training.checkpointing) * training.bytes_per_activation

    rest = budget.less(shape.parameters * training.bytes_per_parameter)
    lengths = (kind.length,) if kind.length else LENGTHS
    tokens = draw_fitting(draw, lengths, rest.batch_bytes, sample_bytes, 1, 128)
    batch = draw_batch(draw, rest.batch_bytes, sample_bytes(tokens), highest=512)
    held = {**dataclasses.asdict(shape), "head": shape.width // shape.heads, "tokens": tokens + _MORE_PLACES}
    config = {name: held[what] for name, what in kind.names.items()} | kind.config | dict.fromkeys(kind.unset)
    if attention:
        config["attn_implementation"] = attention
    target = f"hf:{shape.kind}?{json.dumps(config, separators=(',', ':'))}"
    name = f"{shape.kind} {shape.width}x{shape.depth}"
    return training.workload(name, "hf", target, _batch(draw, shape, batch, tokens), None)


def _draw_shape(draw: Draw, parameters: float) -> _Shape:
    kind = draw.choice(tuple(TYPES) + tuple(TEXT_TYPES))
    depth = max(1, draw.weighted(_DEPTHS) // TYPES[kind].stacks)
    head = draw.choice((64, 64, 128))
    vocabulary = 0 if kind in IMAGE_TYPES or kind == "wav2vec2" else draw.choice(_VOCABULARIES)
    vocabulary = 51_865 if kind == "whisper" else vocabulary  # spec: its config; special tokens are at the end
    grouping = draw.choice((1, 2, 4))
    ratio = draw.choice((2, 3, 4))

    def shape(width: int) -> _Shape:
        heads = width // head
        groups = heads // grouping if heads % grouping == 0 and "groups" in TYPES[kind].names.values() else heads
        return _Shape(kind, width, depth, heads, groups, (4 if kind == "bloom" else ratio) * width, vocabulary)

    return shape(largest(lambda width: shape(width).parameters, parameters, 128, WIDEST, head))


def _batch(draw: Draw, shape: _Shape, batch: int, tokens: int) -> tuple[str, ...]:
    """Return the tensors that a model of this type takes, including its labels."""
    if shape.kind in IMAGE_TYPES:
        return f"pixel_values={batch}x3x224x224", f"labels={batch}:int64<1000"
    if shape.kind == "whisper":
        return f"input_features={batch}x80x3000", f"labels={batch}x{draw.choice((32, 100, 200))}:int64<{shape.vocabulary}"
    if shape.kind == "wav2vec2":
        return f"input_values={batch}x{_SAMPLES}", f"labels={batch}x{draw.choice((16, 32))}:int64<32"
    ids = f"{batch}x{tokens}:int64<{shape.vocabulary}"
    mask = (f"attention_mask={batch}x{tokens}:int64=1",) if draw.chance(0.15) else ()
    return f"input_ids={ids}", *mask, f"labels={ids}"
