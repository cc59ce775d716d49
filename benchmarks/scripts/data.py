"""Stub data for public training scripts: valid in form, meaningless in content, since values do not affect memory.

Images of noise, text of random words, and token files; `formats.py` has the formats of single projects, `models.py` the
checkpoints. If a package is missing, the function raises ImportError, and its run is left out.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.scripts import formats
from benchmarks.scripts import models as scripts_models
from benchmarks.scripts.text import lines

_IMAGES: Final = 128  # arbitrary: images per class; some batches of the largest run
_CLASSES: Final = 8  # arbitrary: more than the five of a top-5 accuracy
_TOKENS: Final = 2_000_000  # arbitrary: tokens in a file


def char_tokens(folder: Path) -> None:
    """Write the output of nanoGPT's shakespeare_char prepare.py."""
    text = "\n".join(lines())
    letters = sorted(set(text))
    codes = {letter: i for i, letter in enumerate(letters)}
    ids = np.array([codes[letter] for letter in text], dtype=np.uint16)
    folder.mkdir(parents=True, exist_ok=True)
    ids[: len(ids) * 9 // 10].tofile(folder / "train.bin")
    ids[len(ids) * 9 // 10 :].tofile(folder / "val.bin")
    meta = {"vocab_size": len(letters), "stoi": codes, "itos": dict(enumerate(letters))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def gpt2_tokens(folder: Path) -> None:
    """Write the output of nanoGPT's openwebtext prepare.py: train.bin and val.bin of GPT-2's tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        np.random.default_rng(0).integers(0, 50257, _TOKENS).astype(np.uint16).tofile(folder / f"{name}.bin")


def mnist(folder: Path) -> None:
    """Write MNIST's four files in torchvision's form, with noise."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    dice = np.random.default_rng(0)
    for name, count in (("train", 60_000), ("t10k", 10_000)):  # spec: MNIST
        images = struct.pack(">IIII", 2051, count, 28, 28) + dice.integers(0, 256, (count, 28, 28)).astype(np.uint8).tobytes()
        labels = struct.pack(">II", 2049, count) + dice.integers(0, 10, count).astype(np.uint8).tobytes()
        for kind, content in (("images-idx3", images), ("labels-idx1", labels)):
            (raw / f"{name}-{kind}-ubyte").write_bytes(content)
            (raw / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(content, 1))


def image_folders(folder: Path, *, side: int = 256) -> None:
    """Write train and val, each with some classes of images."""
    from PIL import Image

    dice = np.random.default_rng(0)
    for part in ("train", "val"):
        for kind in (f"c{i}" for i in range(_CLASSES)):
            place = folder / part / kind
            place.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(dice.integers(0, 256, (side, side, 3)).astype(np.uint8))
            for i in range(_IMAGES if part == "train" else 16):
                picture.save(place / f"{i:04}.jpg")


def captions(folder: Path) -> None:
    """Write a folder of images with captions for `datasets.load_dataset`."""
    from PIL import Image

    place = folder / "train"
    place.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (512, 512, 3)).astype(np.uint8))
    rows = []
    for i in range(64):
        picture.save(place / f"{i:04}.png")
        rows.append(json.dumps({"file_name": f"{i:04}.png", "text": f"a picture of noise {i}"}))
    (place / "metadata.jsonl").write_text("\n".join(rows), encoding="utf-8")


def carvana(folder: Path) -> None:
    """Write imgs and masks for Pytorch-UNet."""
    from PIL import Image

    dice = np.random.default_rng(0)
    for name in ("imgs", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(dice.integers(0, 256, (1280, 1918, 3)).astype(np.uint8))  # spec: Carvana's size
    mask = Image.fromarray(dice.integers(0, 2, (1280, 1918)).astype(np.uint8))
    for i in range(30):
        picture.save(folder / "imgs" / f"{i:03}.jpg")
        mask.save(folder / "masks" / f"{i:03}_mask.gif")


def wikitext(folder: Path) -> None:
    """Write train.txt, valid.txt and test.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 2000), ("valid", 200), ("test", 200)):
        (folder / f"{name}.txt").write_text("\n".join(lines(count)) + "\n", encoding="utf-8")


def conversations(folder: Path) -> None:
    """Write `sft/train.jsonl` of messages and `dpo/train.jsonl` of preferences."""
    dice, text = random.Random(0), lines()
    made: dict[str, Callable[[int], dict[str, Any]]] = {
        "sft": lambda i: {
            "messages": [
                {"role": "user", "content": text[i]},
                {"role": "assistant", "content": " ".join(dice.sample(text, 80))},
            ]
        },
        "dpo": lambda i: {
            "prompt": text[i], "chosen": " ".join(dice.sample(text, 10)), "rejected": " ".join(dice.sample(text, 10))
        },
    }  # fmt: skip
    for name, row in made.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = "\n".join(json.dumps(row(i)) for i in range(500))
        (folder / name / "train.jsonl").write_text(rows, encoding="utf-8")


# Data sets by name for the runs; each is made once, in a folder of that name, and reused.
MAKERS: Final[dict[str, Callable[[Path], None]]] = {
    "chars": char_tokens,
    "gpt2-tokens": gpt2_tokens,
    "mnist": mnist,
    "images": image_folders,
    "captions": captions,
    "carvana": carvana,
    "wikitext": wikitext,
    "conversations": conversations,
    "pairs": formats.pairs,
    "alpaca": formats.alpaca,
    "accuracy": formats.accuracy,
    "axolotl": formats.axolotl,
    "c4": formats.c4,
    "coco": formats.coco,
    "cora": formats.cora,
    "deepspeed": formats.deepspeed,
    "llama-tokens": formats.llama_tokens,
    "nanochat": formats.nanochat,
    "yolo": formats.yolo,
    "hub": scripts_models.torch_hub,
    "qwen05": scripts_models.qwen_05b,
    "qwen3": scripts_models.qwen3_06b,
    "llama8b": scripts_models.llama_8b,
    "llama1b": scripts_models.llama_1b,
    "gpt2": scripts_models.gpt2,
    "bert": scripts_models.bert,
    "sd15": scripts_models.stable_diffusion,
    "sd-vae": scripts_models.vae,
}


def made(name: str, data: Path) -> Path:
    """Return the folder with the stub data of that name; make it if it does not exist."""
    folder = data / name
    done = folder / ".made"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        MAKERS[name](folder)
        done.touch()
    return folder
