"""Models that an engine is given by their hub ids: a folder with the configuration, where neither cache nor hub has one."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final

from vramcast.core import cache
from vramcast.core.errors import UsageError
from vramcast.jobs import hub

# spec: the names of llm-compressor's checkpoints, and the schemes of compressed-tensors that make them, with their formats.
_SCHEMES: Final = {
    "-fp8-dynamic": ("FP8_DYNAMIC", "float-quantized"), "-fp8": ("FP8", "float-quantized"),
    "-quantized.w8a8": ("W8A8", "int-quantized"), "-quantized.w4a16": ("W4A16", "pack-quantized"),
}  # fmt: skip
# spec: checkpoints of these types are published quantized.
_QUANTIZED: Final = {
    "gpt_oss": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    },
}
_TASKS: Final = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM")  # what engines serve; in transformers' own words


def folder(name: str) -> str | None:
    """Return a folder with the configuration of a model in the built-in table.

    Args:
        name: The model as the engine is given it.

    Returns:
        The folder; None: the name is no hub id, or the engine finds its configuration in the cache or on the hub.

    Raises:
        UsageError: Cache, hub and table lack the model.
    """
    if not hub.is_hub_id(name):
        return None
    path, _, reason = hub.config_file(name)
    if path is not None:
        return None
    values = config(name)
    if values is None:
        close = " or ".join(hub.similar_ids(name))
        raise UsageError(
            f"The model '{name}' has no configuration on this machine: the Hugging Face cache lacks it, {reason}, and the "
            f"built-in table too. {f'Did you mean {close}? Else give' if close else 'Give'} a folder with its config.json; "
            "weights are not needed."
        )
    text = json.dumps(values, sort_keys=True)
    digest = sha256(text.encode()).hexdigest()[:16]
    kept = cache.kept(f"engines/{digest}/{name.replace('/', '--')}/config.json", lambda path: path.write_text(text))
    return str(kept.parent)


def config(name: str) -> dict[str, Any] | None:
    """Return the config.json of a model in the built-in table, or of one that is quantized from such a model.

    Args:
        name: The hub id.

    Returns:
        Its values; None: it is not there, or its type generates no text.
    """
    base, quantization = _base(name)
    found = None if base is None else hub.table_config(base)
    architecture = None if found is None else _architecture(found.model_type)
    if found is None or architecture is None:
        return None
    values = {key: value for key, value in found.values.items() if key != "dtype"}
    if (published := _QUANTIZED.get(found.model_type)) is not None:
        values["quantization_config"] = published
    weights = found.values.get("dtype", "float32")
    return {"model_type": found.model_type, "architectures": [architecture], **values, "torch_dtype": weights, **quantization}


def quantization(name: str) -> dict[str, Any]:
    """Return what a model's configuration has besides that of the model it is quantized from, by its name; {}: nothing."""
    scheme, form = next((_SCHEMES[ending] for ending in _SCHEMES if name.lower().endswith(ending)), ("", ""))
    if not scheme:
        return {}
    from compressed_tensors.quantization import preset_name_to_scheme

    group = preset_name_to_scheme(scheme, ["Linear"]).model_dump(mode="json", exclude_none=True)
    how = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    return {"quantization_config": how}


def _base(name: str) -> tuple[str | None, dict[str, Any]]:
    """Return the id of the table for a model, None if there is none, and what its quantization adds to the configuration."""
    if hub.table_config(name) is not None:
        return name, {}
    ending = next((ending for ending in _SCHEMES if name.lower().endswith(ending)), "")
    model = name.lower().removesuffix(ending).rpartition("/")[2]
    base = next((one for one in hub.table_ids() if one.lower().rpartition("/")[2] == model), None) if ending else None
    return base, {} if base is None else quantization(name)


def _architecture(model_type: str) -> str | None:
    """Return the class that generates text with a type of model."""
    from transformers.models.auto import modeling_auto

    for task in _TASKS:
        found = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}).get(model_type)
        if found is not None:
            return found if isinstance(found, str) else str(found[0])
    return None
