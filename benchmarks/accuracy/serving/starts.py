"""Published starts of vLLM, as the planner of llm-d or readers of public logs noted them, and commands that repeat them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vramcast.tracer.engines.vllm import models

_CARDS: Final = {
    "H100-80GB": "h100", "H100 80GB": "h100", "H100": "h100", "H200": "h200", "L40S": "l40s", "RTX 3090": "rtx3090",
    "Tesla T4": "t4", "A100 80GB": "a100-80gb",
}  # fmt: skip
# The planner's names of columns, and those of the public logs; they share the others.
_OF_LOGS: Final = {
    "vllm": "version", "init_total_memory_gib": "gpu_memory_gib", "weights_memory_gib": "weights_gib",
    "activation_memory_gib": "activation_gib", "kv_cache_memory_gib": "kv_cache_gib", "cuda_graph_actual_gib": "cuda_graph_gib",
}  # fmt: skip
_KNOWN: Final = ("vllm", "tp", "max_model_len", "gpu_memory_utilization")  # without them, a start cannot be repeated
# Options of a start that may be absent, with their columns: the engine then has its default.
_OPTIONS: Final = {
    "max-model-len": "max_model_len", "dtype": "dtype", "kv-cache-dtype": "kv_cache_dtype", "max-num-seqs": "max_num_seqs",
    "gpu-memory-utilization": "gpu_memory_utilization", "max-num-batched-tokens": "max_num_batched_tokens",
    "tensor-parallel-size": "tp", "pipeline-parallel-size": "pp",
}  # fmt: skip
_CACHES: Final = frozenset({"", "auto", "fp8"})


@dataclass(frozen=True, slots=True)
class Start:
    """One published start.

    Attributes:
        row: Its cells.
    """

    row: dict[str, str]

    @property
    def name(self) -> str:
        """Its model, and its options that differ from the usual ones."""
        usual = {"tp": "1", "pp": "1", "max_model_len": "8192", "dtype": "bfloat16", "kv_cache_dtype": "auto"}
        said = {key: self.row[key].removeprefix("torch.") for key in usual if self.row[key]}
        other = [f"{key} {said[key]}" for key in said if said[key] != usual[key]]
        fp8 = ["quantization fp8"] if self._is_quantized_at_start else []
        return ", ".join([self.row["model"], *other, *fp8])

    @property
    def _is_quantized_at_start(self) -> bool:
        return self.row["quantization"] == "fp8"

    @property
    def why_not(self) -> str:
        """Why it cannot be repeated; empty: it can."""
        if self.row["status"] != "ok":
            return "it failed"
        if self.row.get("engine", "vLLM") != "vLLM":
            return "another engine"
        if not all(self.row[column] for column in _KNOWN):
            return "settings not logged"
        if self.row["gpu"] not in _CARDS or self.row["dp"] != "1" or self.row["kv_cache_dtype"] not in _CACHES:
            return "card or options"
        return "" if models.config(self.row["model"]) else "no configuration at hand"

    def number(self, column: str) -> float | None:
        """Return a number of the row; None: unknown."""
        return float(self.row[column]) if self.row.get(column) else None

    def command(self) -> list[str]:
        """Return the words of `vramcast check` that repeat it."""
        row = self.row
        said = {name: row.get(column, "").removeprefix("torch.") for name, column in _OPTIONS.items()}
        words = ["vllm", "serve", row["model"], *(word for name in said if said[name] for word in (f"--{name}", said[name]))]
        words += [] if "engine" in row else ["--no-enable-prefix-caching"]  # spec: the planner's own start
        words += ["--quantization", "fp8"] if self._is_quantized_at_start else []
        words += ["--enforce-eager"] if row.get("enforce_eager") == "True" else []
        total_gib = row["init_total_memory_gib"]
        return ["--on", _CARDS[row["gpu"]], *(["--memory", f"{total_gib}GiB"] if total_gib else []), "--json", "--", *words]


def starts(path: Path) -> Iterator[Start]:
    """Yield the starts of a file, in its order."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            ours = {name: row[column] for name, column in _OF_LOGS.items() if column in row}
            yield Start({"status": "ok", "dp": "1", **row, **ours})
