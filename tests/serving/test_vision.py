"""A vision-language model: vLLM loads its encoder, and profiles it with the largest image or video."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("vllm")

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import processing_utils

from tests.serving.engines import QWEN3, Answer, asked, configured

# vLLM 0.22 asks a processor for the tokens of a text with a placeholder and no image.
REFUSED: Final = "tokens in the text but no images were passed" in inspect.getsource(processing_utils)
WORDS: Final = 4000
WIDTH, DEPTH, PATCH, MERGED = 256, 2, 14, 2
TEXT: Final = {name: value for name, value in QWEN3.items() if name not in ("architectures", "model_type", "head_dim")}
VISION: Final = {
    "depth": DEPTH, "embed_dim": WIDTH, "hidden_size": TEXT["hidden_size"], "num_heads": 4, "mlp_ratio": 4,
    "patch_size": PATCH, "spatial_merge_size": MERGED, "temporal_patch_size": 2, "in_channels": 3, "model_type": "qwen2_vl",
}  # fmt: skip
MARKS: Final = ("vision_start", "vision_end", "vision_pad", "image_pad", "video_pad")
QWEN2_VL: Final[dict[str, Any]] = {
    **TEXT, "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "tie_word_embeddings": False,
    "max_position_embeddings": 32768, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}, "vision_config": VISION,
    "vision_start_token_id": WORDS, "vision_end_token_id": WORDS + 1, "vision_token_id": WORDS + 2,
    "image_token_id": WORDS + 3, "video_token_id": WORDS + 4,
}  # fmt: skip
PROCESSOR: Final = {
    "processor_class": "Qwen2VLProcessor", "image_processor_type": "Qwen2VLImageProcessor", "patch_size": PATCH,
    "temporal_patch_size": 2, "merge_size": MERGED, "min_pixels": 3136, "max_pixels": 12845056, "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}  # fmt: skip
MERGER: Final = MERGED**2 * WIDTH
# Patches; attention, MLP and two norms of each block; the merger; angles of 8,192 positions. With biases, but for the patches.
ENCODER: Final = (
    3 * 2 * PATCH**2 * WIDTH
    + DEPTH * (4 * (WIDTH + 1) * WIDTH + (WIDTH + 1) * 4 * WIDTH + (4 * WIDTH + 1) * WIDTH + 4 * WIDTH)
    + 2 * WIDTH + (MERGER + 1) * MERGER + (MERGER + 1) * TEXT["hidden_size"] + 8192 * 32
)  # fmt: skip


def served(folder: Path, *options: str) -> Answer:
    """Return the answer for a tiny Qwen2-VL with the files of its tokenizer and processor."""
    model = configured(folder, QWEN2_VL)
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2TokenizerFast", "eos_token": "w1"}))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return asked("--", "vllm", "serve", model, "--enforce-eager", "--max-model-len", "8192", *options)


@pytest.mark.skipif(REFUSED, reason="this release of transformers rejects vLLM's own prompts for an encoder")
def test_encoder_is_loaded_and_profiled(tmp_path: Path) -> None:
    both = served(tmp_path / "both")
    text = served(tmp_path / "text", "--limit-mm-per-prompt", json.dumps({"image": 0, "video": 0}))
    assert (both.code, text.code) == (0, 0), both.log + text.log
    assert both.serving["weights_bytes"] - text.serving["weights_bytes"] == pytest.approx(2 * ENCODER, rel=0.001)
    assert "Encoder cache will be initialized" in both.log


@pytest.mark.skipif(not REFUSED, reason="an older transformers")
def test_newer_processor_is_refused_in_a_sentence(tmp_path: Path) -> None:
    refused = served(tmp_path)
    assert refused.code == 4
    assert "Engine core initialization failed" in refused.json["verdict"]["reason"]
