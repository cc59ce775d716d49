"""Checkpoints without weights: from_pretrained finds names, shapes and a tokenizer, and the disk holds almost nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli.main import main
from vramcast.core.errors import UsageError
from vramcast.jobs.stub_checkpoint import StubTensor, write_safetensors, write_stub
from vramcast.tracer.protocol.job_advice import missing_files_advice

TINY = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "bos_token_id": 90,
    "eos_token_id": [91, 92], "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.mark.integration  # imports transformers, for seconds
def test_stub_loads_as_checkpoint(need: Callable[[str], Any], config: Path, tmp_path: Path) -> None:
    transformers, torch = need("transformers"), need("torch")
    stub = write_stub(str(config), tmp_path / "stub", dtype="bfloat16")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(stub.folder, dtype="auto", output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum(parameter.numel() for parameter in model.parameters()) == stub.parameters
    assert float(model.model.layers[1].mlp.up_proj.weight.detach().abs().sum()) == 0.0


def test_tokenizer_has_vocabulary_of_model(need: Callable[[str], Any], config: Path, tmp_path: Path) -> None:
    transformers = need("transformers")
    folder = write_stub(str(config), tmp_path / "stub").folder
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id) == (96, 90, 91)
    assert tokenizer.model_max_length == 64
    assert set(tokenizer("three short words")["input_ids"]) < set(range(96))
    assert "hi" in tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_token_count_resembles_real_tokenizer(need: Callable[[str], Any], kind: str, tmp_path: Path) -> None:
    """Read a text with qwen2's stub: transformers ignores the kind in its files, and another kind gave empty texts."""
    transformers = need("transformers")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**TINY, "model_type": kind, "vocab_size": 8192, "bos_token_id": 8000, "eos_token_id": 8001}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(write_stub(str(config), tmp_path / "stub").folder)
    text = "The values of the arguments are assigned to the names in the same order as they are given."  # 18 words
    ids = tokenizer(text)["input_ids"]
    assert 18 <= len(ids) <= 27
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == 8192


def test_bidirectional_model_has_mask_token(need: Callable[[str], Any], tmp_path: Path) -> None:
    transformers = need("transformers")
    small = '{"vocab_size": 50, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}'
    tokenizer = transformers.AutoTokenizer.from_pretrained(write_stub(f"bert?{small}", tmp_path / "stub").folder)
    roles = {tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id}
    assert len(roles) == 4
    assert None not in roles


def test_large_weights_are_sparse_shards(need: Callable[[str], Any], tmp_path: Path) -> None:
    need("huggingface_hub")
    tensors = {f"w{i}": StubTensor((1024, 1_500_000), "bfloat16", 1024 * 3_000_000) for i in range(3)}
    write_safetensors(tensors, tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {f"w{i}": f"model-0000{i + 1}-of-00003.safetensors" for i in range(3)}
    assert index["metadata"]["total_size"] == 3 * 1024 * 3_000_000
    assert sum(path.stat().st_blocks for path in tmp_path.iterdir()) * 512 < 1 << 20


def test_command_line_writes_stub(
    need: Callable[[str], Any], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("transformers")
    assert main(["stub-checkpoint", str(config), "--out", str(tmp_path / "stub"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["parameters"] == write_stub(str(config), tmp_path / "other").parameters
    assert main(["stub-checkpoint", str(config), "--out", str(tmp_path / "stub")]) == 2  # the folder is not empty now
    with pytest.raises(UsageError, match="is not a dtype of torch"):
        write_stub(str(config), tmp_path / "third", dtype="float17")


class LocalEntryNotFoundError(Exception):
    """Raise as huggingface_hub does."""


def test_missing_hub_suggests_stub_command() -> None:
    error = OSError("We couldn't connect to 'https://huggingface.co' to load 'meta-llama/Llama-3.1-8B'.")
    assert "vramcast stub-checkpoint CONFIG.json --out DIR" in missing_files_advice(error)
    assert "'meta-llama/Llama-3.1-8B'" in missing_files_advice(error)
    wrapped = RuntimeError("no model")
    wrapped.__cause__ = LocalEntryNotFoundError("Cannot find the requested files")
    assert "'org/name'" in missing_files_advice(wrapped)
    assert missing_files_advice(FileNotFoundError("data/train.bin")) == ""
