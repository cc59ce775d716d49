"""Forms of models and engines: experts, quantized weights and caches, sliding windows, adapters, draft models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("vllm")

from tests.serving.engines import HEAD_SIZE, HEADS, LAYERS, QWEN3, TOKENS, Answer, asked, configured, scripted
from vramcast.core.units import MIB
from vramcast.tracer.engines.vllm import models

BYTES_PER_TOKEN: Final = LAYERS * 2 * HEADS * HEAD_SIZE * 2
WIDE: Final[dict[str, Any]] = {**QWEN3, "hidden_size": 1024, "intermediate_size": 4096}
EXPERTS, INNER = 8, 256
MOE: Final[dict[str, Any]] = {
    **QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": EXPERTS,
    "num_experts_per_tok": 2, "moe_intermediate_size": INNER, "decoder_sparse_step": 1, "norm_topk_prob": True,
    "mlp_only_layers": [],
}  # fmt: skip
TRITON: Final = {"moe_backend": "triton"}  # FlashInfer's kernels of experts are compiled by nvcc
EXPERT_BYTES: Final = LAYERS * EXPERTS * 3 * INNER * QWEN3["hidden_size"] * 2
# Numbers in the linear layers of WIDE, which quantization makes smaller; embeddings stay.
LINEAR: Final = LAYERS * (1024 * 64 * (4 + 2 + 2) + 4 * 64 * 1024 + 3 * 1024 * 4096)
RANK, ADAPTERS = 64, 4
# Inputs and outputs of the linear layers of WIDE that get adapters, and of its tied embeddings, which get them as embed_tokens,
# as the logits, and in vLLM 0.22 again as lm_head; 0.33 finds that wrapped already (lora/model_manager.py, wrapped_by_id).
SIZES: Final = (1024, 256), (1024, 128), (1024, 128), (256, 1024), (1024, 4096), (1024, 4096), (4096, 1024)
BESIDE: Final = tuple(LAYERS * sum(map(sum, SIZES)) + tied * (QWEN3["vocab_size"] + 1024) for tied in (2, 3))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    return scripted(tmp_path_factory.mktemp("plain"), WIDE)


def starts(answer: Answer) -> dict[str, Any]:
    """Return the accounts of an engine that starts."""
    assert answer.code == 0, answer.log
    assert answer.serving["starts"]
    return answer.serving


def per_token(serving: dict[str, Any]) -> float:
    return float(serving["kv_cache_bytes"] / serving["kv_cache_tokens"])


def test_experts_are_weights(tmp_path: Path) -> None:
    serving = starts(scripted(tmp_path, MOE, **TRITON))
    others = QWEN3["vocab_size"] * 256 * 2 + LAYERS * 256 * 64 * (2 * 4 + 2 * HEADS) * 2  # embeddings, attention
    assert serving["weights_bytes"] == pytest.approx(EXPERT_BYTES + others, abs=2 * MIB)
    assert per_token(serving) == BYTES_PER_TOKEN


def test_expert_parallel_rank_has_its_experts(tmp_path: Path) -> None:
    words = ["vllm", "serve", configured(tmp_path, {**MOE, "moe_intermediate_size": 4 * INNER}), "--enforce-eager"]
    words += ["--max-model-len", str(TOKENS), "--moe-backend", "triton"]
    alone, parallel = asked("--", *words), asked("--", *words, "-tp", "2", "--enable-expert-parallel")
    assert starts(alone)["weights_bytes"] - starts(parallel)["weights_bytes"] > 4 * EXPERT_BYTES / 2
    assert [one["rank"] for one in parallel.json["ranks"]] == [0, 1]


def test_fp8_checkpoint_takes_a_byte_a_number(plain: Answer, tmp_path: Path) -> None:
    quantized = {**WIDE, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    saved = starts(plain)["weights_bytes"] - starts(scripted(tmp_path, quantized))["weights_bytes"]
    assert saved == pytest.approx(LINEAR, rel=0.05)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when compressed_tensors is imported
def test_w4a16_checkpoint_takes_four_bits_a_number(plain: Answer, tmp_path: Path) -> None:
    quantized = {**WIDE, **models.quantization("org/name-quantized.w4a16")}
    saved = starts(plain)["weights_bytes"] - starts(scripted(tmp_path, quantized))["weights_bytes"]
    assert saved == pytest.approx(LINEAR * (16 - 4) / 8, rel=0.05)


def test_fp8_cache_has_twice_the_tokens(plain: Answer, tmp_path: Path) -> None:
    assert per_token(starts(scripted(tmp_path, WIDE, kv_cache_dtype="fp8"))) == per_token(starts(plain)) / 2


def test_adapters_take_memory_before_they_are_loaded(plain: Answer, tmp_path: Path) -> None:
    lora = starts(scripted(tmp_path, WIDE, enable_lora=True, max_lora_rank=RANK, max_loras=ADAPTERS))
    more = lora["weights_bytes"] - starts(plain)["weights_bytes"]
    assert any(more == pytest.approx(ADAPTERS * RANK * beside * 2, abs=MIB) for beside in BESIDE)


def test_draft_model_takes_weights_and_cache(plain: Answer, tmp_path: Path) -> None:
    draft = {"model": configured(tmp_path / "draft", WIDE), "num_speculative_tokens": 3}
    both = starts(scripted(tmp_path, WIDE, speculative_config=draft))
    assert both["weights_bytes"] > 1.5 * starts(plain)["weights_bytes"]
    assert per_token(both) == 2 * per_token(starts(plain))


def test_sliding_windows_hold_more_tokens(tmp_path: Path) -> None:
    gemma = {
        **QWEN3, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 6,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": HEAD_SIZE, "rope_local_base_freq": 10000.0,
        "sliding_window": 128, "sliding_window_pattern": 6, "max_position_embeddings": 131072,
    }  # fmt: skip
    serving = starts(scripted(tmp_path, gemma, max_model_len=131072))
    everywhere = 6 * 2 * HEADS * HEAD_SIZE * 2
    assert everywhere / 6 < per_token(serving) < everywhere / 2  # five of six layers keep a window and a batch
