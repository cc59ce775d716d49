"""The KV cache of transformers' `generate` is a category; the outputs of a model that is only called are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vramcast.jobs.job import Command
from vramcast.tracer.format.trace import Action, Category
from vramcast.tracer.protocol.job_result import Result

LAYERS, HEADS, HEAD_SIZE, BATCH, PROMPT, NEW = 2, 2, 64, 4, 64, 9
SCRIPT = f"""
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
config = Qwen2Config(hidden_size=256, intermediate_size=512, num_hidden_layers={LAYERS}, num_attention_heads=4,
                     num_key_value_heads={HEADS}, vocab_size=4096)
model = Qwen2ForCausalLM(config).cuda().bfloat16().eval()
prompt = torch.randint(4096, ({BATCH}, {PROMPT}), device="cuda")
with torch.no_grad():
    model(prompt)
generated = model.generate(prompt, max_new_tokens={NEW}, do_sample=False, eos_token_id=None, pad_token_id=0)
"""


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory, trace: Callable[..., Result], need: Callable[[str], Any]) -> list[int]:
    """Sizes of the cache's blocks, in the order of their requests."""
    need("transformers")
    script: Path = tmp_path_factory.mktemp("generate") / "generate.py"
    script.write_text(SCRIPT)
    seen = trace(command=Command((str(script),))).trace
    assert seen is not None
    rows = np.flatnonzero((seen.action == Action.ALLOC) & (seen.category == Category.KV_CACHE))
    sizes: list[int] = seen.size_bytes[rows].tolist()
    return sizes


def test_cache_begins_with_prompt(sizes: list[int]) -> None:
    assert sizes[: 2 * LAYERS] == [BATCH * PROMPT * HEADS * HEAD_SIZE * 2] * 2 * LAYERS


def test_cache_grows_with_each_token(sizes: list[int]) -> None:
    tokens = [PROMPT + new for new in range(NEW) for _ in range(2 * LAYERS)]
    assert sizes == [BATCH * count * HEADS * HEAD_SIZE * 2 for count in tokens]
