"""Published fine-tuning peaks against estimates by the model's name alone.

    python -m benchmarks.surveys.fine_tuning [--only TEXT] [--most N]   # needs peft and bitsandbytes; 10 to 60 s a job

Each row becomes `vramcast estimate hf:ORG/NAME --batch-size N --seq N --lora ...`: no script and no tensor is given. A row
counts if its settings determine such a command. That rule was written before any estimate. The model is in the table of hub
ids. The batch and the length are given, or the length's limit if batches are padded. The figure is a torch peak, or a process
peak below 94 % of the card. The job runs on one card, or on several under FSDP without quantized weights. Its loop has no
kernels, compiled code or offloading of its own. For LoRA, the rank and the modules are known. A figure is at least what the
settings themselves need, and counts once. Other rows are counted by reason.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.runner import BUILD, read_rows
from benchmarks.tables import table
from vramcast.core.units import GIB
from vramcast.jobs.hub import table_config

KEPT: Final = BUILD / "fine_tuning.jsonl"
_FULL_CARD_GIB: Final = 0.94 * 79.15  # spec: an A100 80GB has 79.15 GiB; above that the cache filled the card
_TIMEOUT_S: Final = 600
_ALL: Final = "all-linear"
_OLDER: Final = "bitsandbytes 0.42"
# spec: configuration files and tables name models in their own way
_IDS: Final = {
    "gemma-2-2b": "google/gemma-2-2b", "gemma-7b": "google/gemma-7b", "gemma-2-9b": "google/gemma-2-9b",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf", "Llama 2 7B": "meta-llama/Llama-2-7b-hf",
    "Llama-2 7B": "meta-llama/Llama-2-7b-hf", "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B", "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B", "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "mistral-7b-v0.2": "unsloth/Mistral-7B-v0.2", "phi-2": "microsoft/phi-2",
    "Phi-3-mini-4k-instruct": "microsoft/Phi-3-mini-4k-instruct",
    "tiny-llama": "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T",
}  # fmt: skip
# spec: litgpt's config_hub/finetune: the rank of models with adapters on all layers; the others have 32, on queries and values
_LITGPT_ALL: Final = {
    "gemma-2-2b lora": 8, "gemma-2-2b qlora": 16, "gemma-7b qlora": 16, "gemma-2-9b qlora": 16, "phi-2 lora": 8,
    "phi-2 qlora": 8, "Phi-3-mini-4k-instruct lora": 8, "tiny-llama lora": 32, "tiny-llama qlora": 32,
}  # fmt: skip
# In bf16 with AdamW, each of their 1.24 and 3.21 billion parameters takes 8 bytes: 9.2 and 23.9 GiB.
_LITGPT_TOO_SMALL: Final = ("llama-3.2-1b full", "llama-3.2-3b full")
# spec: peft's method_comparison/MetaMathQA/experiments; each is proved by its number of trainable parameters
_PEFT: Final = re.compile(r"lora/llama-3.2-3B-rank(\d+)(-rslora|-target-mlp|-steps1000)?;")
_MLP: Final = "target=gate_proj+up_proj+down_proj"


@dataclass(frozen=True, slots=True)
class Row:
    """A published figure with the words of its estimate, or the reason why names alone do not express it."""

    source: str
    job: str
    figure: str
    measured_gib: float
    words: tuple[str, ...] = ()
    reason: str = ""

    @property
    def group(self) -> str:
        """The rows that it is summed with: source, method, and figure."""
        method = "QLoRA" if "--qlora" in self.words else "LoRA" if "--lora" in self.words else "full"
        # spec: bitsandbytes 0.43.2 (July 2024, pull request 1270) is the first to free the inputs of 4-bit layers; litgpt's
        # rows are from 0.41.1 and 0.42.0
        older = f" ({_OLDER})" if method == "QLoRA" and self.source == "LitGPT" else ""
        return f"{self.source}, {method}{older}, {self.figure}"


def _words(model: str, card: str, batch: str, seq: int, method: str, *more: str) -> tuple[str, ...]:
    base = (f"hf:{model}", "--on", card, "--batch-size", batch, "--seq", str(seq), "--precision", "bf16")
    return (*base, "--optimizer", "adamw", *method.split(), *more)


def _peft() -> Iterator[Row]:
    for row in read_rows("peft.csv"):
        what = row["extra"].partition(";")[0]
        version = row["torch_version"].partition("+")[0]
        about = ("PEFT", f"{row['model']} {what}, torch {version}", "reserved", float(row["gib"]))
        known = _PEFT.match(row["extra"])
        if "Llama" not in row["model"]:
            yield Row(*about, reason="not a language model")
        elif known is None:
            yield Row(*about, reason="a method other than LoRA, QLoRA, or full fine-tuning")
        else:
            lora = f"--lora r={known[1]}" + (f",{_MLP}" if known[2] == "-target-mlp" else ",target=q_proj+v_proj")
            card = "l40s" if "L40S" in row["gpu"] else "rtx4090"
            yield Row(*about, words=_words(row["model"], card, f"{float(row['batch']):.0f}", 768, lora))


def _litgpt() -> Iterator[Row]:
    seen = set()
    for row in _litgpt_table():
        if row.job not in seen:  # both files have some lines of the same table
            yield row
        seen.add(row.job)


def _litgpt_table() -> Iterator[Row]:
    for row in read_rows("zoo.csv"):
        if not row["source"].startswith("litgpt config_hub"):
            continue
        method = next(iter(re.findall(r"/(lora|qlora|full)\.yaml", row["extra"])), "")
        yield _litgpt_row(row["model"], method, row["batch"], row["gpu"], float(row["gib"]))
    for row in read_rows("public/finetune_logs.csv"):
        if row["framework"] == "litgpt":
            method = "qlora" if "QLoRA" in row["method"] else "lora" if "LoRA" in row["method"] else "full"
            # the row's configuration file, gemma2-2b, has another model than its line in the table
            model = {"gemma-2b": "gemma-2-2b"}.get(row["model_id"], row["model_id"])
            yield _litgpt_row(model, method, row["micro_batch"], f"{row['n_gpus']}xA10G", float(row["value_gib"]))


def _litgpt_row(model: str, method: str, batch: str, cards: str, gib: float) -> Row:
    about = ("LitGPT", f"{model} {method} {batch} x 512, {cards}", "allocated", gib)
    if model not in _IDS:
        return Row(*about, reason="model not in the table")
    if cards != "1xA10G":
        return Row(*about, reason="several cards, their strategy or checkpointing not stated")
    # an A10G has the memory of an A10; an allocated peak depends on no other fact of the card
    if f"{model} {method}" in _LITGPT_TOO_SMALL:
        return Row(*about, reason="less than the weights, gradients and optimizer state of its settings")
    rank = _LITGPT_ALL.get(f"{model} {method}")
    dropout = 0.1 if "gemma" in model else 0.05
    adapter = f"r={rank},dropout={dropout},target={_ALL}" if rank else f"r=32,dropout={dropout},target=q_proj+v_proj"
    # litgpt accumulates: gradients are alive in the forward pass, and an adapter's are small
    how = "--zero-grad before-backward" if method == "full" else f"--{method} {adapter}"
    return Row(*about, words=_words(_IDS[model], "a10", batch, 512, how))


def _resource_tables() -> Iterator[Row]:
    """Yield litgpt's tables of Llama 2 7B: 4,194,304 adapter weights are rank 8 on queries and values."""
    for row in read_rows("zoo.csv"):
        if row["source"] != "litgpt resource-tables":
            continue
        about = (
            "LitGPT",
            f"{row['model']} {row['extra']}, {row['dtype']}, {row['batch']} x 1304",
            "allocated",
            float(row["gib"]),
        )
        if "finetune_lora" not in row["extra"]:
            yield Row(*about, reason="a method other than LoRA, QLoRA, or full fine-tuning")
        elif "1 x" not in row["extra"]:
            yield Row(*about, reason="several cards, their strategy or checkpointing not stated")
        else:
            option = "--qlora" if "nf4" in row["dtype"] else "--lora"
            method = f"{option} r=8,dropout=0.05,target=q_proj+v_proj"
            yield Row(*about, words=_words(_IDS["Llama 2 7B"], "a100-40gb", row["batch"], 1304, method))


def _fms() -> Iterator[Row]:
    for row in read_rows("public/finetune_logs.csv"):
        if not row["framework"].startswith("fms"):
            continue
        figure = row["figure"].partition("_")[0]
        gib, cards = float(row["value_gib"]), int(row["n_gpus"])
        about = ("fms-acceleration", f"{row['model_id']} {row['method']}, {cards} cards x {row['micro_batch']}", figure, gib)
        is_quantized = "QLoRA" in row["method"]
        if "foak" in row["method"] or "moe-" in row["method"]:
            yield Row(*about, reason="kernels of its own")
        elif "packed" not in row["seq_len"]:
            yield Row(*about, reason="length not stated")
        elif table_config(row["model_id"]) is None:
            yield Row(*about, reason="model not in the table")
        elif "Mixtral" in row["model_id"] and is_quantized:
            yield Row(*about, reason="experts are one parameter in this transformers, which bitsandbytes does not quantize")
        elif cards > 1 and is_quantized:
            yield Row(*about, reason="sharded 4-bit weights")
        elif figure == "process" and gib > _FULL_CARD_GIB:
            yield Row(*about, reason="the card was full")
        else:
            lora = "r=16,dropout=0.1,target=q_proj+k_proj+v_proj+o_proj"
            method = f"--qlora {lora}" if is_quantized else f"--lora {lora}" if "LoRA" in row["method"] else ""
            spread = ("--parallel", "fsdp", "--world-size", str(cards)) if cards > 1 else ()
            words = _words(row["model_id"], "a100-80gb", row["micro_batch"], 4096, method, "--checkpointing", *spread)
            yield Row(*about, words=words)


# spec: torchtune's README of May 2024 (batch 4, 2048 tokens) and its recipes' configurations: checkpointing, rank 8 on queries
# and values; and the README's list of optimizations, of which only the second has no compiled code and a known length
_TORCHTUNE: Final = {
    "Llama2-7B LoRA ": (_IDS["Llama 2 7B"], "rtx4090", "4", 2048, "--lora r=8,target=q_proj+v_proj --checkpointing"),
    "Llama2-7B LoRA FSDP": (
        _IDS["Llama 2 7B"], "rtx4090", "4", 2048,
        "--lora r=8,target=q_proj+v_proj --checkpointing --parallel fsdp --world-size 2",
    ),
    "Llama2-7B Full finetune FSDP": (
        _IDS["Llama 2 7B"], "rtx4090", "4", 2048, "--checkpointing --parallel fsdp --world-size 4",
    ),
    "Llama 3.2 3B full_finetune_single_device; cumulative: +packed": (_IDS["llama-3.2-3b"], "a100-80gb", "2", 4096, ""),
}  # fmt: skip


def _torchtune() -> Iterator[Row]:
    for row in read_rows("zoo.csv"):
        if row["source"].startswith("torchtune"):
            job = f"{row['model']} {row['extra']}"
            about = ("torchtune", job, row["metric"].removeprefix("max_"), float(row["gib"]))
            known = _TORCHTUNE.get(job)
            if known is not None:
                yield Row(*about, words=_words(*known))
            elif "ompile" in row["extra"] or "cumulative" in row["extra"]:
                yield Row(*about, reason="compiled code")
            else:
                yield Row(*about, reason="length or recipe not stated, or the optimizer steps inside the backward pass")


def _others() -> Iterator[Row]:
    for row in read_rows("public/unsloth.csv"):
        yield Row("Unsloth", row["model"], "reserved", float(row["figure_MiB"] or 0) / 1024, reason="kernels of its own")
    for row in read_rows("public/fsdp_qlora.csv"):
        yield Row(
            "fsdp_qlora", row["model"], "reserved", float(row["value_mib"]) / 1024, reason="CPU offload or FSDP1's no-shard"
        )


def rows() -> Iterator[Row]:
    """Yield all rows of the tables."""
    for read in (_fms, _torchtune, _resource_tables, _litgpt, _peft, _others):
        yield from read()


def estimated(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON of one estimate, or only its message."""
    command = [sys.executable, "-m", "vramcast", "estimate", *words, "--json", "--timeout", str(_TIMEOUT_S)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        answer = {"message": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:200]}
    return answer


def _kept() -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the answers of earlier runs: remove the file to ask again."""
    lines = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else []
    return {tuple(one["words"]): one["answer"] for one in map(json.loads, lines)}


def main() -> None:
    """Run the rows that are not kept, and print the table, its errors, and the rows that do not count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows with TEXT in their source or job")
    parser.add_argument("--most", type=int, default=1000, metavar="N", help="at most N new estimates")
    options = parser.parse_args()
    found = [row for row in rows() if options.only in f"{row.source} {row.job}"]
    kept, left = _kept(), options.most
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    for row in found:
        if not row.words or row.words in kept or left <= 0:
            continue
        kept[row.words], left = estimated(row.words), left - 1
        with KEPT.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"words": row.words, "answer": {**kept[row.words], "timeline": None}}) + "\n")
    print(report(found, kept))


def report(found: list[Row], kept: dict[tuple[str, ...], dict[str, Any]]) -> str:
    """Return the table of the rows with an answer, the errors by source and figure, and the counts of the others."""
    lines, pairs, reasons = [], dict[str, list[tuple[float, float]]](), Counter(row.reason for row in found if row.reason)
    for row in found:
        if row.words and row.words not in kept:
            reasons["not run"] += 1
        if not row.words or row.words not in kept:
            continue
        peaks = kept[row.words].get("peaks")
        here_gib = None if peaks is None else peaks[row.figure] / GIB
        if here_gib is None:
            lines.append([row.source, row.job, row.figure, f"{row.measured_gib:.2f}", "-", kept[row.words]["message"]])
            continue
        error = 100 * (here_gib / row.measured_gib - 1)
        lines.append([row.source, row.job, row.figure, f"{row.measured_gib:.2f}", f"{here_gib:.2f}", f"{error:+.1f} %"])
        for group in (row.group, "all", *([] if _OLDER in row.group else [f"all without {_OLDER}"])):
            pairs.setdefault(group, []).append((here_gib, row.measured_gib))
    tables = [
        table(("source", "job", "figure", "measured, GiB", "estimated, GiB", "error"), lines, "lll"),
        table(("rows", *SUMMARY_COLUMNS), [(group, *summarize(some).cells()) for group, some in sorted(pairs.items())]),
        table(("does not count", "rows"), reasons.most_common()),
    ]
    return "\n\n".join(tables)


if __name__ == "__main__":
    main()
