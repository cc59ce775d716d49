"""Published starts of vLLM, as the planner of llm-d collected them, and the command that repeats each of them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vramcast.tracer.nullgpu.child import engine_models

_CARDS: Final = {"H100-80GB": "h100"}
_CACHES: Final = frozenset({"auto", "fp8"})


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
        usual = {"tp": "1", "pp": "1", "max_model_len": "8192", "dtype": "torch.bfloat16", "kv_cache_dtype": "auto"}
        other = [f"{key} {self.row[key].removeprefix('torch.')}" for key, value in usual.items() if self.row[key] != value]
        return ", ".join([self.row["model"], *other])

    @property
    def why_not(self) -> str:
        """Why it cannot be repeated; empty: it can."""
        if self.row["status"] != "ok":
            return "it failed"
        if self.row["gpu"] not in _CARDS or self.row["dp"] != "1" or self.row["kv_cache_dtype"] not in _CACHES:
            return "card or options"
        return "" if engine_models.config(self.row["model"]) else "no configuration at hand"

    def number(self, column: str) -> float | None:
        """Return a number of the row; None: unknown."""
        return float(self.row[column]) if self.row[column] else None

    def command(self) -> list[str]:
        """Return the words of `vramcast check` that repeat it."""
        row = self.row
        options = {
            "max-model-len": row["max_model_len"], "dtype": row["dtype"].removeprefix("torch."),
            "kv-cache-dtype": row["kv_cache_dtype"], "gpu-memory-utilization": row["gpu_memory_utilization"],
            "max-num-batched-tokens": row["max_num_batched_tokens"], "tensor-parallel-size": row["tp"],
            "pipeline-parallel-size": row["pp"],
        }  # fmt: skip
        words = ["vllm", "serve", row["model"], "--no-enable-prefix-caching"]  # spec: the planner's own start
        card = ["--on", _CARDS[row["gpu"]], "--memory", f"{row['init_total_memory_gib']}GiB"]
        return [*card, "--json", "--", *words, *(word for name, value in options.items() for word in (f"--{name}", value))]


def starts(path: Path) -> Iterator[Start]:
    """Yield the starts of a file, in its order."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from map(Start, csv.DictReader(file))
