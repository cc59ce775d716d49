"""Starts of the real vLLM on the null GPU, with configurations of two layers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TOKENS: Final = 1024  # longest request
LAYERS, HEADS, HEAD_SIZE = 2, 2, 64
# A small Qwen3: an attention layer's keys and values take LAYERS * 2 * HEADS * HEAD_SIZE numbers a token.
QWEN3: Final[dict[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": HEADS,
    "head_dim": HEAD_SIZE, "vocab_size": 4096, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "torch_dtype": "bfloat16", "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SCRIPT: Final = """
from vllm import LLM
LLM({model}, **{options})
raise SystemExit("the job goes on after its engine is ready")
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the command line: its exit code, its JSON, and the last lines of its standard error."""

    code: int
    json: dict[str, Any]
    log: str

    @property
    def serving(self) -> dict[str, Any]:
        """The engine's accounts."""
        serving: dict[str, Any] = self.json["serving"]
        return serving


def configured(folder: Path, config: dict[str, Any]) -> str:
    """Write a model's configuration, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def asked(*words: str, card: str = "h100", verb: str = "check") -> Answer:
    """Return the answer about a command."""
    environ = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **os.environ}  # an engine of a script is in its own process: 10 s less
    command = [sys.executable, "-m", "vramcast", verb, "--on", card, "--json", "--timeout", "500", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False, env=environ)
    log = done.stdout[-1000:] + done.stderr[-4000:]
    return Answer(done.returncode, json.loads(done.stdout or "{}"), log)  # wrong usage has no JSON


def scripted(folder: Path, config: dict[str, Any], *before: str, **options: Any) -> Answer:
    """Return the answer about a script with `vllm.LLM`; eager, unless the options say otherwise."""
    script = folder / "serve.py"
    model = configured(folder / "model", config)
    options = {"enforce_eager": True, "max_model_len": TOKENS, **options}
    script.write_text(SCRIPT.format(model=repr(model), options=options), encoding="utf-8")
    return asked(*before, "--", str(script))
