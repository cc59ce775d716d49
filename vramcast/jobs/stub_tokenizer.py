"""A stub tokenizer with a model's vocabulary size, for scripts that load one: byte-level BPE, trained on Python's own manual.

Most models have this kind of tokenizer, and transformers accepts no other for some model types (qwen2). English texts become
about as long as with the real tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data import topics
from typing import Any, Final

_ROLES: Final = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
# Bidirectional models have these tokens even if their config does not list them.
_BOTH_WAYS: Final = ("pad", "unk", "cls", "sep", "mask")
_MANY: Final = 1 << 20  # arbitrary: tokens; a larger number is not a vocabulary size
# Settings of a token that is matched literally.
_WHOLE: Final = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
# The template of most open chat models.
_CHAT: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(config: Any, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json for a model's config; do nothing if it has no vocabulary."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    size = getattr(text, "vocab_size", None)
    if not isinstance(size, int) or not 0 < size <= _MANY:
        return
    special = _special(text, size)
    names = {index: f"<{role}>" for role, index in reversed(special.items())}
    free = [index for index in range(size) if index not in names]
    tokens, merges = _pieces(len(free))
    pieces = dict(zip(tokens, free, strict=False))
    vocabulary = {**pieces, **{f"<{index}>": index for index in free[len(pieces) :]}, **{v: k for k, v in names.items()}}
    unknown = names.get(special.get("unk", special.get("eos", min(special.values(), default=0))), next(iter(vocabulary)))
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": name, **_WHOLE} for index, name in sorted(names.items())],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            # As text, which all releases read; lists need tokenizers 0.20. A byte-level token has no space.
            "merges": [" ".join(pair) for pair in merges if "".join(pair) in pieces],
            "unk_token": unknown,
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    longest = getattr(text, "max_position_embeddings", None)
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": None for role in ("bos", "eos", "pad")},  # otherwise a class of transformers adds its own
        "unk_token": unknown,
        **{f"{role}_token": names[index] for role, index in special.items()},
        "model_max_length": longest if isinstance(longest, int) and longest > 0 else 512,
        "chat_template": _CHAT,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1))


def _pieces(size: int) -> tuple[list[str], list[list[str]]]:
    """Return at most `size` tokens of an English text, starting with the letters of all bytes, and their merges."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(topics.topics.values(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__)[:size], model["merges"]


def _special(config: Any, size: int) -> dict[str, int]:
    """Return {role: id} of the special tokens that a config names, plus those that its kind of model must have."""
    found: dict[str, int] = {}
    for role in _ROLES:
        index = getattr(config, f"{role}_token_id", None)
        index = index[0] if isinstance(index, list) and index else index  # several ends: the first
        if isinstance(index, int) and 0 <= index < size:
            found[role] = index
    if not {"bos", "eos"} & set(found) or "mask" in found:
        free = iter(index for index in range(size) if index not in found.values())
        for role in _BOTH_WAYS:
            if role not in found and (index := next(free, None)) is not None:
                found[role] = index
    return found
