"""Stub checkpoints with true names, shapes and dtypes, and holes in sparse files as weights: 8B parameters in a few MB.

The null GPU needs no values, but a script's `from_pretrained` needs files: config.json, generation_config.json, safetensors
files (sharded with an index, as on the hub), and a tokenizer with the model's vocabulary size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import OutputError, UsageError
from vramcast.jobs import targets
from vramcast.jobs.stub_tokenizer import write_tokenizer

# spec: the safetensors format, names of dtypes
_DTYPES: Final = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_ALIGNED_BYTES: Final = 8  # spec: the safetensors format, the header's length


@dataclass(frozen=True, slots=True)
class StubTensor:
    """One tensor of a checkpoint: its shape, torch's name of its dtype, and its size."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Stub:
    """A written checkpoint. `size_bytes` is the apparent size of the files, `disk_bytes` their use of the disk."""

    folder: Path
    parameters: int
    size_bytes: int
    disk_bytes: int


def write_stub(target: str, folder: Path, *, dtype: str | None = None) -> Stub:
    """Write the checkpoint of a Hugging Face model without its weights.

    Args:
        target: A hub id (`meta-llama/Llama-3.1-8B`), a model type (`llama`, with the type's default sizes), a config.json,
            or a folder with one; optionally with `hf:` and `?{...}`, as in a TARGET.
        folder: The folder to write; it is created if it does not exist.
        dtype: Dtype of the weights (`bfloat16`); None: the config's, or else float32.
    Raises:
        UsageError: There is no such model, or the folder has other files.
        OutputError: The checkpoint cannot be written.
    """
    import torch

    text = targets.resolved(target if target.startswith("hf:") else f"hf:{_placed(target)}")
    if dtype is not None:
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise UsageError(f"--dtype {dtype} is not a dtype of torch: write for example bfloat16.")
        text = _with(text, {"dtype": dtype})
    with torch.device("meta"):
        model = targets.build(text)
    return _written(model, folder)


def _placed(target: str) -> str:
    """Return an absolute path for a path, and a model type unchanged."""
    name, separator, options = target.partition("?")
    is_path = name.endswith(".json") or Path(name).exists()
    return f"{Path(name).resolve() if is_path else name}{separator}{options}"


def _with(text: str, options: Mapping[str, Any]) -> str:
    name, _, given = text.partition("?")
    return f"{name}?{json.dumps({**(json.loads(given) if given else {}), **options})}"


def _written(model: Any, folder: Path) -> Stub:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"'{folder}' is not empty: name another folder.")
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        generation = getattr(model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(folder)
        tensors = tensors_of(model)
        write_safetensors(tensors, folder)
        write_tokenizer(model.config, folder)
        files = [path.stat() for path in folder.iterdir()]
    except OSError as error:
        raise OutputError(f"'{folder}' cannot be written ({error.strerror}).") from None
    disk_bytes = sum(file.st_blocks for file in files) * 512  # spec: stat(2), units of 512 bytes
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Stub(folder, parameters, sum(file.st_size for file in files), disk_bytes)


def tensors_of(model: Any) -> dict[str, StubTensor]:
    """Return the tensors of a model's checkpoint by name; tied weights have only their first name, as on the hub."""
    found: dict[str, StubTensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            dtype = str(tensor.dtype).removeprefix("torch.")
            found[name] = StubTensor(tuple(tensor.shape), dtype, tensor.numel() * tensor.element_size())
    return found


def write_safetensors(tensors: Mapping[str, StubTensor], folder: Path, name: str = "model") -> None:
    """Write tensors of zeros as sparse files: one, or several with an index."""
    from huggingface_hub import split_state_dict_into_shards_factory  # a dependency of transformers

    shards = split_state_dict_into_shards_factory(
        dict(tensors), get_storage_size=lambda tensor: tensor.size_bytes, filename_pattern=name + "{suffix}.safetensors"
    )
    for file, keys in shards.filename_to_tensors.items():
        _write_one({key: tensors[key] for key in keys}, folder / file)
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        (folder / f"{name}.safetensors.index.json").write_text(json.dumps(index, indent=1))


def _write_one(tensors: Mapping[str, StubTensor], path: Path) -> None:
    """Write one file: the header's length, the header, and a hole."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at_bytes = 0
    for key, tensor in tensors.items():
        end_bytes = at_bytes + tensor.size_bytes
        header[key] = {"dtype": _DTYPES[tensor.dtype], "shape": tensor.shape, "data_offsets": [at_bytes, end_bytes]}
        at_bytes = end_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNED_BYTES)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        os.truncate(file.fileno(), 8 + len(text) + at_bytes)
