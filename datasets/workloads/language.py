"""Draws Hugging Face models from their configs: text, images, sound, from toys to language models of a few billions."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from vramcast.datasets.run import Workload
from vramcast.datasets.workloads.sampling import Draw
from vramcast.datasets.workloads.sizes import LENGTHS, WIDEST, draw_batch, draw_budget, draw_fitting, largest
from vramcast.datasets.workloads.training_options import draw_training


@dataclass(frozen=True, slots=True)
class _Type:
    """A model type of transformers, and what its config calls things.

    Attributes:
        names: Config entry -> what it holds: width, depth, heads, groups (of keys and values), inner, head, vocabulary,
            tokens (the longest text).
        config: Entries which are always the same.
        stacks: Of `depth` layers each; an encoder and a decoder are two.
        gated: The feed-forward has three matrices.
        untied: The output has its own matrix.
        length: Tokens of every sample where the text's length does not decide.
    """

    names: dict[str, str]
    config: dict[str, Any] = field(default_factory=dict)
    stacks: int = 1
    gated: bool = False
    untied: bool = False
    length: int = 0


_PLAIN = {
    "hidden_size": "width", "num_hidden_layers": "depth", "num_attention_heads": "heads", "intermediate_size": "inner",
}  # fmt: skip
_TEXT = {**_PLAIN, "vocab_size": "vocabulary", "max_position_embeddings": "tokens"}
_GROUPED = {**_TEXT, "num_key_value_heads": "groups"}
_WITH_HEAD = {**_GROUPED, "head_dim": "head"}
_TWO_STACKS = {
    "d_model": "width", "encoder_layers": "depth", "decoder_layers": "depth", "encoder_attention_heads": "heads",
    "decoder_attention_heads": "heads", "encoder_ffn_dim": "inner", "decoder_ffn_dim": "inner", "vocab_size": "vocabulary",
}  # fmt: skip
_IMAGES = {"image_size": 224, "patch_size": 16, "num_labels": 1000}
_MORE_PLACES = 8  # arbitrary: RoBERTa's position table keeps the first two for padding

TEXT_TYPES: dict[str, _Type] = {
    "bert": _Type(_TEXT),
    "roberta": _Type(_TEXT),
    "electra": _Type({**_TEXT, "embedding_size": "width"}),
    "distilbert": _Type(
        {"dim": "width", "n_layers": "depth", "n_heads": "heads", "hidden_dim": "inner", "vocab_size": "vocabulary",
         "max_position_embeddings": "tokens"}
    ),
    "gpt2": _Type(
        {"n_embd": "width", "n_layer": "depth", "n_head": "heads", "n_inner": "inner", "vocab_size": "vocabulary",
         "n_positions": "tokens"}
    ),
    "gpt_neox": _Type(_TEXT, untied=True),
    "bloom": _Type({"hidden_size": "width", "n_layer": "depth", "n_head": "heads", "vocab_size": "vocabulary"}),
    "phi": _Type(_GROUPED, untied=True),
    "llama": _Type(_GROUPED, gated=True, untied=True),
    "mistral": _Type(_GROUPED, gated=True, untied=True),
    "qwen2": _Type(_GROUPED, gated=True, untied=True),
    "qwen3": _Type(_WITH_HEAD, gated=True, untied=True),
    "gemma": _Type(_WITH_HEAD, gated=True),
    "t5": _Type(
        {"d_model": "width", "num_layers": "depth", "num_heads": "heads", "d_ff": "inner", "d_kv": "head",
         "vocab_size": "vocabulary"},
        {"decoder_start_token_id": 0},
        stacks=2,
    ),
    "bart": _Type({**_TWO_STACKS, "max_position_embeddings": "tokens"}, stacks=2),
}  # fmt: skip
IMAGE_TYPES: dict[str, _Type] = {
    "vit": _Type(_PLAIN, _IMAGES, length=197),
    "deit": _Type(_PLAIN, {**_IMAGES, "architectures": ["DeiTForImageClassification"]}, length=198),
    "beit": _Type(_PLAIN, _IMAGES, length=197),
}
# Whisper hears 30 s, 3000 frames of which its encoder makes 1500; wav2vec2 makes a token of 320 of its `_SAMPLES`.
SOUND_TYPES: dict[str, _Type] = {
    "whisper": _Type(_TWO_STACKS, {"suppress_tokens": None, "begin_suppress_tokens": None}, stacks=2, length=1500),
    "wav2vec2": _Type(
        _PLAIN, {"architectures": ["Wav2Vec2ForCTC"], "vocab_size": 32, "mask_time_prob": 0.0, "layerdrop": 0.0}, length=250
    ),
}
TYPES = {**TEXT_TYPES, **IMAGE_TYPES, **SOUND_TYPES}

# spec: shapes of published models (their config.json): type, width, depth, heads, groups, inner, vocabulary.
_KNOWN = (
    ("bert", 768, 12, 12, 12, 3072, 30_522), ("roberta", 768, 12, 12, 12, 3072, 50_265),
    ("distilbert", 768, 6, 12, 12, 3072, 30_522), ("electra", 256, 12, 4, 4, 1024, 30_522),
    ("gpt2", 768, 12, 12, 12, 3072, 50_257), ("t5", 512, 6, 8, 8, 2048, 32_128), ("bart", 768, 6, 12, 12, 3072, 50_265),
    ("whisper", 384, 4, 6, 6, 1536, 51_865), ("vit", 768, 12, 12, 12, 3072, 0), ("deit", 384, 12, 6, 6, 1536, 0),
    ("wav2vec2", 768, 12, 12, 12, 3072, 0),
)  # fmt: skip
_LARGE = (
    ("bert", 1024, 24, 16, 16, 4096, 30_522), ("gpt2", 1024, 24, 16, 16, 4096, 50_257),
    ("qwen2", 896, 24, 14, 2, 4864, 151_936), ("qwen2", 1536, 28, 12, 2, 8960, 151_936),
    ("llama", 2048, 16, 32, 8, 8192, 128_256), ("llama", 3072, 28, 24, 8, 8192, 128_256),
    ("gemma", 2048, 18, 8, 1, 16_384, 256_000),
)  # fmt: skip

_SAMPLES = 80_000  # arbitrary: 5 s of sound at 16 kHz
_VOCABULARIES = (8000, 30_522, 50_257, 128_256)  # arbitrary: BERT's, GPT-2's and Llama 3's among them
_DEPTHS = {1: 20, 2: 35, 3: 15, 4: 20, 6: 10}  # arbitrary: wide rather than deep: a dry run's time goes by operators


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
        """About how many there are."""
        kind = TYPES[self.kind]
        attention = (2 + 2 * self.groups / self.heads) * self.width**2 * (1.5 if kind.stacks == 2 else 1)
        feedforward = (3 if kind.gated else 2) * self.width * self.inner
        words = self.vocabulary * self.width * (2 if kind.untied else 1)
        return words + kind.stacks * self.depth * (attention + feedforward)

    def elements(self, tokens: int, eager: bool, checkpointing: bool) -> float:
        """Return about how many elements a sample of so many tokens keeps for backward, its scores over words included."""
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
    published = _Shape(*draw.choice(_LARGE if large else _KNOWN)) if drawn_kind != "random" else None
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
    config = {name: held[what] for name, what in kind.names.items()} | kind.config
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
    """Return the tensors which a model of this type takes, its labels among them."""
    if shape.kind in IMAGE_TYPES:
        return f"pixel_values={batch}x3x224x224", f"labels={batch}:int64<1000"
    if shape.kind == "whisper":
        return f"input_features={batch}x80x3000", f"labels={batch}x{draw.choice((32, 100, 200))}:int64<{shape.vocabulary}"
    if shape.kind == "wav2vec2":
        return f"input_values={batch}x{_SAMPLES}", f"labels={batch}x{draw.choice((16, 32))}:int64<32"
    ids = f"{batch}x{tokens}:int64<{shape.vocabulary}"
    mask = (f"attention_mask={batch}x{tokens}:int64=1",) if draw.chance(0.15) else ()
    return f"input_ids={ids}", *mask, f"labels={ids}"
