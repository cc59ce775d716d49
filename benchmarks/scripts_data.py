"""Stub data for public training scripts: of the right form, and of no meaning, since values move no memory.

Images of noise, text of random words, token files, and checkpoints whose safetensors files are holes: an 8B model takes no
disk. What needs a package which is not here raises ImportError, and the run which asked for it is left out.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
import string
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

_WORDS: Final = 3000  # arbitrary: different ones; also the vocabulary of the tokenizers
_LINES: Final = 4000  # arbitrary: of the corpus
_IMAGES: Final = 512  # arbitrary: of each class; two batches of the largest run
_TOKENS: Final = 2_000_000  # arbitrary: of a token file
_LENGTHS: Final = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2), "int64": ("I64", 8)}


def words(seed: int = 0) -> list[str]:
    """Return the corpus' words."""
    dice = random.Random(seed)
    return ["".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 9))) for _ in range(_WORDS)]


def lines(count: int = _LINES, *, seed: int = 0) -> list[str]:
    """Return lines of a dozen words."""
    dice, known = random.Random(seed), words()
    return [" ".join(dice.choices(known, k=12)) for _ in range(count)]


def char_tokens(folder: Path) -> None:
    """Write what nanoGPT's prepare.py of shakespeare_char writes."""
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
    """Write what nanoGPT's prepare.py of openwebtext writes: train.bin and val.bin of GPT-2's tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        np.random.default_rng(0).integers(0, 50257, _TOKENS).astype(np.uint16).tofile(folder / f"{name}.bin")


def mnist(folder: Path) -> None:
    """Write MNIST's four files as torchvision keeps them, with noise."""
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
    """Write train and val, of two classes of images each."""
    from PIL import Image

    dice = np.random.default_rng(0)
    for part in ("train", "val"):
        for kind in ("c0", "c1"):
            place = folder / part / kind
            place.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(dice.integers(0, 256, (side, side, 3)).astype(np.uint8))
            for i in range(_IMAGES if part == "train" else 16):
                picture.save(place / f"{i:04}.jpg")


def captions(folder: Path) -> None:
    """Write a folder of images with captions, as `datasets.load_dataset` reads it."""
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
    """Write imgs and masks as Pytorch-UNet reads them."""
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
                {"role": "assistant", "content": " ".join(dice.sample(text, 40))},
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


def hollow_weights(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write a safetensors file of the tensors' shapes, whose values are a hole of zeros."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        code, size_bytes = _LENGTHS[str(tensor.dtype).removeprefix("torch.")]
        start, end = end, end + tensor.numel() * size_bytes
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # spec: safetensors' format; the buffer is aligned
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + end)


def causal_model(folder: Path, kind: str, dtype: str = "bfloat16", **config: Any) -> None:
    """Write a causal language model of transformers with a tokenizer: config, hollow weights."""
    import tokenizers
    import torch
    import transformers

    settings = transformers.AutoConfig.for_model(kind, **config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=getattr(torch, dtype))
    settings.architectures, settings.dtype = [type(model).__name__], dtype
    settings.save_pretrained(folder)
    tied = settings.tie_word_embeddings
    hollow_weights(
        folder / "model.safetensors",
        {name: value for name, value in model.state_dict().items() if not (tied and name == "lm_head.weight")},
    )
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|pad|>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=_WORDS, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(lines(), trainer)
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=special[0], bos_token=special[0], pad_token=special[1], model_max_length=2048
    )
    wrapped.chat_template = "{% for m in messages %}{{m['role']}}: {{m['content']}}{{eos_token}}{% endfor %}"
    wrapped.save_pretrained(folder)


# spec: config.json of Qwen/Qwen2.5-0.5B and meta-llama/Meta-Llama-3-8B
_QWEN: Final = {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "vocab_size": 151_936, "tie_word_embeddings": True, "max_position_embeddings": 32_768,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip
_LLAMA: Final = {
    "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128_256, "tie_word_embeddings": False, "max_position_embeddings": 8192,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip

# What a run may ask for by name; each is made once, in a folder of that name, and found there again.
MAKERS: Final[dict[str, Callable[[Path], None]]] = {
    "chars": char_tokens,
    "gpt2-tokens": gpt2_tokens,
    "mnist": mnist,
    "images": image_folders,
    "captions": captions,
    "carvana": carvana,
    "wikitext": wikitext,
    "conversations": conversations,
    "qwen05": lambda folder: causal_model(folder, "qwen2", **_QWEN),
    "llama8b": lambda folder: causal_model(folder, "llama", **_LLAMA),
}


def made(name: str, data: Path) -> Path:
    """Return the folder with the stub data of that name, made if it is not there yet."""
    folder = data / name
    done = folder / ".made"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        MAKERS[name](folder)
        done.touch()
    return folder
