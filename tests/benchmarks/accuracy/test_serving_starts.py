"""Published starts of vLLM: which can be repeated, and by which command."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers.models.auto.modeling_auto")  # whose import takes seconds

from benchmarks.accuracy.serving.starts import Start, starts

ROW = {
    "vllm": "0.19.0", "status": "ok", "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100-80GB", "tp": "2", "pp": "1",
    "dp": "1", "max_model_len": "8192", "dtype": "torch.bfloat16", "quantization": "None", "kv_cache_dtype": "auto",
    "gpu_memory_utilization": "0.95", "max_num_batched_tokens": "8192", "init_total_memory_gib": "79.19",
    "weights_memory_gib": "7.51", "planner_weights_gib": "",
}  # fmt: skip


def test_command_repeats_start() -> None:
    words = Start(ROW).command()
    assert words[:4] == ["--on", "h100", "--memory", "79.19GiB"]
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert words[words.index("serve") + 1] == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"status": "failed"}, "it failed"),
        ({"dp": "2"}, "card or options"),
        ({"engine": "SGLang"}, "another engine"),
        ({"gpu_memory_utilization": ""}, "settings not logged"),
        ({"model": "org/unknown"}, "no configuration at hand"),
    ],
)
def test_start_that_cannot_be_repeated_says_why(changes: dict[str, str], why: str) -> None:
    assert Start({**ROW, **changes}).why_not == why


def test_reads_file(tmp_path: Path) -> None:
    path = tmp_path / "starts.csv"
    path.write_text(",".join(ROW) + "\n" + ",".join(ROW.values()) + "\n")
    (start,) = starts(path)
    assert start.name == "meta-llama/Llama-3.1-8B-Instruct, tp 2"
    assert (start.number("weights_memory_gib"), start.number("planner_weights_gib")) == (7.51, None)


def test_reads_public_logs(tmp_path: Path) -> None:
    row = {
        "engine": "vLLM", "version": "0.22.1", "model": "Qwen/Qwen3-30B-A3B", "gpu": "H100 80GB", "gpu_memory_gib": "",
        "tp": "1", "pp": "1", "dtype": "bfloat16", "quantization": "fp8", "kv_cache_dtype": "auto", "max_model_len": "8192",
        "gpu_memory_utilization": "0.92", "max_num_batched_tokens": "", "max_num_seqs": "64", "enforce_eager": "False",
        "weights_gib": "29.08", "activation_gib": "", "kv_cache_gib": "42.54", "cuda_graph_gib": "0.22",
    }  # fmt: skip
    path = tmp_path / "logs.csv"
    path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    (start,) = starts(path)
    assert (start.name, start.why_not) == ("Qwen/Qwen3-30B-A3B, quantization fp8", "")
    assert (start.number("weights_memory_gib"), start.number("activation_memory_gib")) == (29.08, None)
    words = start.command()
    assert words[:5] == ["--on", "h100", "--json", "--", "vllm"]  # its memory is not logged
    assert words[words.index("--max-num-seqs") + 1] == "64"
    assert words[-2:] == ["--quantization", "fp8"]
    assert "--max-num-batched-tokens" not in words
