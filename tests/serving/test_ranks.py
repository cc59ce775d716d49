"""Many cards: vLLM's tensor and pipeline parallel, with absent workers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm")

from tests.serving.engines import QWEN3, TOKENS, Answer, asked, configured, scripted
from vramcast.core.units import MIB

SHARE = 0.5  # spec: each of two ranks has half of a sharded tensor


def served(folder: Path, *options: str) -> Answer:
    model = configured(folder, {**QWEN3, "vocab_size": 32768})
    return asked("--", "vllm", "serve", model, "--max-model-len", str(TOKENS), "--enforce-eager", *options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    return served(tmp_path_factory.mktemp("alone"))


def test_tensor_parallel_rank_has_its_share(alone: Answer, tmp_path: Path) -> None:
    two = served(tmp_path, "-tp", "2")
    assert two.code == 0, two.log
    assert two.json["world_size"] == 2
    assert [one["rank"] for one in two.json["ranks"]] == [0]  # the other does the same
    assert two.serving["weights_bytes"] == pytest.approx(SHARE * alone.serving["weights_bytes"], abs=MIB)
    per_token = alone.serving["kv_cache_bytes"] / alone.serving["kv_cache_tokens"]
    assert two.serving["kv_cache_bytes"] / two.serving["kv_cache_tokens"] == SHARE * per_token


def test_pipeline_parallel_traces_first_and_last_stage(alone: Answer, tmp_path: Path) -> None:
    two = served(tmp_path, "-pp", "2")
    assert two.code == 0, two.log
    first, last = [one["serving"] for one in two.json["ranks"]]
    assert first["activation_bytes"] < last["activation_bytes"]  # the last stage has the logits
    per_token = alone.serving["kv_cache_bytes"] / alone.serving["kv_cache_tokens"]
    assert two.serving["kv_cache_bytes"] / two.serving["kv_cache_tokens"] == SHARE * per_token


def test_script_with_too_few_ranks_says_what_to_add(tmp_path: Path) -> None:
    answer = scripted(tmp_path, QWEN3, tensor_parallel_size=2)
    assert answer.code == 2, answer.log
    assert "add --world-size 2" in answer.log
