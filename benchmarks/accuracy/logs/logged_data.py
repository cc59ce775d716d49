"""Data for logged training scripts: shards of random tokens, and a tokenizer trained on random words.

A shard has 256 little-endian int32 (20240520, its version, the number of tokens, zeros) and then 16-bit tokens, as llm.c,
modded-nanogpt and parameter-golf read them. The values of the tokens do not affect memory.
"""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Final

import numpy as np

_MAGIC: Final = 20240520  # spec: llm.c, dev/data/data_common.py
_HEADER_WORDS: Final = 256  # spec: as above
_TRAIN_TOKENS: Final = 20_000_000  # arbitrary: more than the few steps of a cut run read
_VAL_BATCH: Final = 524_288  # spec: the scripts' own default
_VAL_BATCHES: Final = 2  # arbitrary: later batches reuse the memory of the second
_GPT2: Final = 50257  # spec: its vocabulary; the last token starts a document
_DOCUMENT_TOKENS: Final = 100_000_000  # spec: as in modded-nanogpt's shards
_TRAIN_SHARDS: Final = 3  # arbitrary: scripts load the next one ahead
_MEAN_DOCUMENT: Final = 900  # arbitrary: near FineWeb's own
_WORDS: Final = 12  # arbitrary: in a line of the tokenizer's text


def write_shard(path: Path, tokens: int, vocabulary: int, *, version: int = 1, mean_document: int | None = None) -> None:
    """Write a shard of `tokens` random tokens below `vocabulary`, in documents of about `mean_document` tokens if given."""
    header = np.zeros(_HEADER_WORDS, dtype="<i4")
    header[:3] = _MAGIC, version, tokens
    random = np.random.default_rng(0)
    values = random.integers(0, vocabulary - (mean_document is not None), tokens).astype("<u2")
    if mean_document is not None:
        begins = np.cumsum(random.geometric(1 / mean_document, 2 * tokens // mean_document))
        values[np.concatenate([[0], begins[begins < tokens]])] = vocabulary - 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.tobytes() + values.tobytes())


def val_tokens(real: int) -> int:
    """Return the number of tokens that replaces a validation set of `real`: some batches, and the same incomplete last batch.

    The last batch has another size, for which the allocator keeps segments.
    """
    return min(real, _VAL_BATCHES * _VAL_BATCH + real % _VAL_BATCH)


def shards(folder: Path, vocabulary: int, real_val_tokens: int, *, train_tokens: int = _TRAIN_TOKENS) -> Path:
    """Return the folder with a training and a validation shard; write them if they do not exist."""
    n_val = val_tokens(real_val_tokens) + 1  # each input needs the token after it
    data = folder / "datasets" / str(n_val) / f"fineweb10B_sp{vocabulary}"
    for kind, count in (("train", train_tokens), ("val", n_val)):
        path = data / f"fineweb_{kind}_000000.bin"
        if not path.exists():
            write_shard(path, count, vocabulary)
    return data


def documents(folder: Path) -> Path:
    """Return the folder with shards of GPT-2's tokens in documents, all alike; write them if they do not exist."""
    data = folder / "documents"
    first = data / "fineweb_val_000000.bin"
    if not first.exists():
        write_shard(first, _DOCUMENT_TOKENS, _GPT2, mean_document=_MEAN_DOCUMENT)
    for number in range(1, _TRAIN_SHARDS + 1):
        path = data / f"fineweb_train_{number:06}.bin"
        if not path.exists():
            path.symlink_to(first.name)
    return data


def tokenizer(folder: Path, vocabulary: int) -> Path:
    """Return the file of a sentencepiece tokenizer with `vocabulary` pieces; train it if it does not exist.

    Raises:
        ImportError: sentencepiece is not installed.
    """
    path = folder / "tokenizers" / f"fineweb_{vocabulary}_bpe.model"
    if path.exists():
        return path
    import sentencepiece  # type: ignore[import-not-found,unused-ignore]

    path.parent.mkdir(parents=True, exist_ok=True)
    text = folder / "text.txt"
    dice = random.Random(0)
    words = ["".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 9))) for _ in range(5 * vocabulary)]
    text.write_text("\n".join(" ".join(dice.choices(words, k=_WORDS)) for _ in range(20 * vocabulary)), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(path.with_suffix("")), vocab_size=vocabulary, model_type="bpe", byte_fallback=True,
        num_threads=1, minloglevel=2,
    )  # fmt: skip
    return path
