"""vLLM itself on the null GPU: a script, the server, and an engine that does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm")

from tests.serving.engines import HEAD_SIZE, HEADS, LAYERS, QWEN3, TOKENS, Answer, asked, configured, scripted
from vramcast.core.units import MIB

BYTES_PER_TOKEN = LAYERS * 2 * HEADS * HEAD_SIZE * 2


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    return scripted(tmp_path_factory.mktemp("eager"), QWEN3)


def test_script_is_answered_in_terms_of_engine(eager: Answer) -> None:
    assert (eager.code, eager.json["verdict"]["value"]) == (0, "fits"), eager.log
    assert eager.serving["engine"] == "vllm"
    assert eager.serving["starts"]
    assert eager.serving["graphs_bytes"] == 0
    assert not eager.json["ended"]


def test_cache_takes_rest_of_engine_share(eager: Answer) -> None:
    tokens = eager.serving["kv_cache_tokens"]
    assert eager.serving["kv_cache_bytes"] == tokens * BYTES_PER_TOKEN
    assert eager.serving["max_concurrency"] == tokens / TOKENS
    assert eager.json["breakdown"]["kv_cache"] == pytest.approx(eager.serving["kv_cache_bytes"], abs=2 * MIB)  # blocks


def test_server_ends_when_it_is_ready(eager: Answer, tmp_path: Path) -> None:
    model = configured(tmp_path, QWEN3)
    server = asked("--", "vllm", "serve", model, "--max-model-len", str(TOKENS), verb="run")
    assert server.code == 0, server.log
    assert not server.json["ended"]
    assert server.serving["weights_bytes"] == pytest.approx(eager.serving["weights_bytes"], abs=MIB)
    assert 0 < server.serving["graphs_bytes"] < 1024 * MIB
    assert server.serving["kv_cache_tokens"] < eager.serving["kv_cache_tokens"]  # graphs come out of its share


def test_engine_without_room_for_one_request_does_not_start(tmp_path: Path) -> None:
    tokens, heads = 131072, 64  # 8 GiB for one request, of a share of 4 GiB
    long = {
        **QWEN3,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 128,
        "max_position_embeddings": tokens,
    }
    answer = scripted(tmp_path, long, "--memory", "8GiB", max_model_len=tokens, gpu_memory_utilization=0.5)
    assert (answer.code, answer.json["verdict"]["value"]) == (1, "does not fit"), answer.log
