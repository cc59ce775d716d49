"""Stub data in the formats of single projects: COCO, Cora, GLUE, nanochat, YOLO, configurations of DeepSpeed."""

from __future__ import annotations

import base64
import csv
import json
import pickle
import random
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.scripts.text import lines

_PAIRS: Final = 2000  # arbitrary: rows for training; a tenth of it for validation
_PICTURES: Final = 48  # arbitrary: for COCO and YOLO; some steps of the widest batch
_CORA: Final = (2708, 1433, 7, 5278, 140, 1000)  # spec: nodes, words, classes, edges, for training, for testing
_LLAMA_TOKENS: Final = 128_000  # spec: Llama 3's tokenizer.model, without its special tokens
_NANOCHAT_VOCABULARY: Final = 32_768  # spec: nanochat, scripts/tok_train.py


def _noise(side: tuple[int, int]) -> Any:
    from PIL import Image

    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (*side, 3)).astype(np.uint8))


def _lines_of_json(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")


def pairs(folder: Path) -> None:
    """Write train.csv and validation.csv with two sentences and a label."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", _PAIRS), ("validation", _PAIRS // 10)):
        text = lines(2 * count)
        with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence1", "sentence2", "label"])
            writer.writerows((text[i], text[-1 - i], i % 2) for i in range(count))


def accuracy(folder: Path) -> None:
    """Write accuracy.py for `evaluate.load("accuracy")`, which finds it next to the script; the hub has the real one."""
    folder.mkdir(parents=True, exist_ok=True)
    text = """import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(p == r for p, r in zip(predictions, references)) / len(references)}
"""
    (folder / "accuracy.py").write_text(text, encoding="utf-8")


def alpaca(folder: Path) -> None:
    """Write alpaca.json and train.jsonl with instruction, input and output, and LLaMA-Factory's dataset_info.json."""
    dice, text = random.Random(0), lines()
    rows = [{"instruction": text[i], "input": "", "output": " ".join(dice.sample(text, 20))} for i in range(1000)]
    _lines_of_json(folder / "train.jsonl", rows)
    (folder / "alpaca.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "dataset_info.json").write_text(json.dumps({"alpaca": {"file_name": "alpaca.json"}}), encoding="utf-8")


def c4(folder: Path) -> None:
    """Write data.json with documents in the form of torchtitan's c4_test."""
    text = lines()
    _lines_of_json(folder / "data.json", [{"text": " ".join(text[i : i + 40])} for i in range(2000)])


def coco(folder: Path) -> None:
    """Write pictures and instances in COCO's 2017 form."""
    picture = _noise((480, 640))
    for part in ("train2017", "val2017"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        images, boxes = [], []
        for i in range(1, _PICTURES + 1):
            picture.save(folder / part / f"{i:012}.jpg")
            images.append({"id": i, "file_name": f"{i:012}.jpg", "height": 480, "width": 640})
            for j in range(7):  # spec: COCO has 7.3 instances an image
                x, y = 20.0 + 60 * j, 30.0 + 40 * j
                corners = [x, y, x + 100, y, x + 100, y + 120, x, y + 120]
                boxes.append({
                    "id": 10 * i + j, "image_id": i, "category_id": 1 + j, "bbox": [x, y, 100.0, 120.0], "area": 12_000.0,
                    "iscrowd": 0, "segmentation": [corners],
                })  # fmt: skip
        names = [{"id": i, "name": f"c{i}"} for i in range(1, 91)]  # spec: COCO, ids up to 90
        (folder / "annotations").mkdir(exist_ok=True)
        facts = {"info": {}, "images": images, "annotations": boxes, "categories": names}
        (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(facts), encoding="utf-8")


def cora(folder: Path) -> None:
    """Write the eight files of Planetoid's Cora with random words and edges."""
    from scipy.sparse import csr_matrix

    nodes, features, classes, edges, training, testing = _CORA
    dice = np.random.default_rng(0)
    words = (dice.random((nodes, features)) < 0.013).astype(np.float32)  # spec: Cora, 18 words of 1,433 a paper
    labels = np.eye(classes, dtype=np.int32)[dice.integers(0, classes, nodes)]
    graph: dict[int, list[int]] = {i: [] for i in range(nodes)}
    for a, b in dice.integers(0, nodes, (edges, 2)).tolist():
        graph[a].append(b)
        graph[b].append(a)
    rest = nodes - testing
    raw = folder / "Cora" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    contents = {
        "x": csr_matrix(words[:training]), "tx": csr_matrix(words[rest:]), "allx": csr_matrix(words[:rest]),
        "y": labels[:training], "ty": labels[rest:], "ally": labels[:rest], "graph": graph,
    }  # fmt: skip
    for name, content in contents.items():
        (raw / f"ind.cora.{name}").write_bytes(pickle.dumps(content))
    (raw / "ind.cora.test.index").write_text("\n".join(str(i) for i in range(rest, nodes)), encoding="utf-8")


def deepspeed(folder: Path) -> None:
    """Write zero2.json and zero3.json from transformers' documentation, with the Trainer's optimizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage in (2, 3):
        config: dict[str, Any] = {
            "bf16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
            "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage, "overlap_comm": True, "contiguous_gradients": True},
        }  # fmt: skip
        (folder / f"zero{stage}.json").write_text(json.dumps(config), encoding="utf-8")


def nanochat(folder: Path) -> None:
    """Write shards of documents and a tokenizer with the full vocabulary, whose tokens are bytes and pairs of them."""
    import pyarrow
    import tiktoken  # type: ignore[import-not-found,unused-ignore]
    import torch
    from pyarrow import parquet

    text = lines()
    shards = folder / "base_data_climbmix"
    shards.mkdir(parents=True, exist_ok=True)
    for i in range(3):
        documents = [" ".join(text[j : j + 60]) for j in range(i, 3000, 2)]
        parquet.write_table(pyarrow.table({"text": documents}), shards / f"shard_{i:05}.parquet", row_group_size=500)
    special = ["bos", "user_start", "user_end", "assistant_start", "assistant_end"]
    special += ["python_start", "python_end", "output_start", "output_end"]
    count = _NANOCHAT_VOCABULARY - len(special)
    tokens = [bytes([i]) for i in range(256)] + [bytes([i, j]) for i in range(97, 224) for j in range(256)]
    ranks = {token: i for i, token in enumerate(tokens[:count])}
    encoding = tiktoken.Encoding(
        "rustbpe", pat_str=r"\s?\S+|\s+", mergeable_ranks=ranks,
        special_tokens={f"<|{name}|>": count + i for i, name in enumerate(special)},
    )  # fmt: skip
    place = folder / "tokenizer"
    place.mkdir(exist_ok=True)
    (place / "tokenizer.pkl").write_bytes(pickle.dumps(encoding))
    sizes = [len(token) for token in ranks] + [0] * len(special)
    torch.save(torch.tensor(sizes, dtype=torch.int32), place / "token_bytes.pt")


def llama_tokens(folder: Path) -> None:
    """Write a tokenizer.model in Llama 3's form and size, whose tokens are bytes, pairs of bytes, and triples of them."""
    tokens = [bytes([i]) for i in range(256)] + [bytes(two) for two in product(range(256), repeat=2)]
    threes = (bytes(three) for three in product(range(97, 123), range(256), range(256)))
    tokens += islice(threes, _LLAMA_TOKENS - len(tokens))
    folder.mkdir(parents=True, exist_ok=True)
    rows = (f"{base64.b64encode(token).decode()} {i}" for i, token in enumerate(tokens))
    (folder / "tokenizer.model").write_text("\n".join(rows), encoding="utf-8")


def yolo(folder: Path) -> None:
    """Write data.yaml with pictures and labels in Ultralytics' form, with COCO's 80 classes."""
    picture = _noise((480, 640))
    boxes = "\n".join(f"{j} 0.{3 + j % 4} 0.{2 + j % 5} 0.2 0.2" for j in range(7))
    for part in ("train", "val"):
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True, exist_ok=True)
        for i in range(_PICTURES):
            picture.save(folder / "images" / part / f"{i:04}.jpg")
            (folder / "labels" / part / f"{i:04}.txt").write_text(boxes, encoding="utf-8")
    names = "\n".join(f"  {i}: c{i}" for i in range(80))
    facts = f"path: {folder.resolve()}\ntrain: images/train\nval: images/val\nnames:\n{names}\n"
    (folder / "data.yaml").write_text(facts, encoding="utf-8")


def axolotl(folder: Path) -> None:
    """Write lora-1b.yml: axolotl's examples/llama-3/lora-1b.yml with stub data and torch's own attention."""
    alpaca(folder)
    rows = {"path": str(folder.resolve() / "alpaca.json"), "ds_type": "json", "type": "alpaca"}
    config = {
        "base_model": "NousResearch/Llama-3.2-1B", "datasets": [rows],
        "val_set_size": 0.1, "output_dir": f"{folder.resolve()}/out", "adapter": "lora", "sequence_len": 2048,
        "sample_packing": True, "eval_sample_packing": True, "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05,
        "lora_target_modules": ["gate_proj", "down_proj", "up_proj", "q_proj", "v_proj", "k_proj", "o_proj"],
        "gradient_accumulation_steps": 2, "micro_batch_size": 2, "num_epochs": 1, "optimizer": "adamw_8bit",
        "lr_scheduler": "cosine", "learning_rate": 0.0002, "bf16": "auto", "tf32": False, "gradient_checkpointing": True,
        "logging_steps": 1, "attn_implementation": "sdpa", "warmup_ratio": 0.1, "evals_per_epoch": 4, "saves_per_epoch": 1,
    }  # fmt: skip
    (folder / "lora-1b.yml").write_text(json.dumps(config), encoding="utf-8")
