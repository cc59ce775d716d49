"""Jobs of the survey: torchvision, timm, and Hugging Face models.

Hugging Face architectures have tiny configs (two layers, width 32): the survey tests whether each operator and branch runs, not
the memory of a full-size model. Image models keep their own input size: the null GPU computes nothing, so a large image
takes no more time than a small one.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vramcast.hardware.device import Device
from vramcast.jobs.job import Job, TensorSpec, Training

BATCH = 2  # arbitrary: batch norm in training needs more than one value a channel
STEPS = 2  # arbitrary: the optimizer's state appears at the end of the first
SEED = 2026  # arbitrary: for the timm sample
N_TIMM = 200  # arbitrary: about one seventh of timm 1.0's constructors
_LENGTH = 64  # arbitrary: tokens
_CLASSES = 4  # arbitrary


def _job(device: Device, target: str, batch: Any, labels: TensorSpec | None = None) -> Job:
    return Job(device=device, target=target, batch=batch, labels=labels, training=Training(optimizer="adamw", steps=STEPS))


# ------------------------------------------------------------------------------------------------ torchvision
def torchvision_jobs(device: Device) -> Iterator[tuple[str, Job]]:
    """Yield (name, job) for every constructor of torchvision.models."""
    from torchvision import models

    kinds = {
        name: kind
        for kind in ("detection", "segmentation", "video", "optical_flow")
        for name in models.list_models(module=getattr(models, kind))
    }
    for name in models.list_models():
        kind = kinds.get(name, "classification")
        labels = TensorSpec((BATCH,), "int64", high=_CLASSES)
        if kind == "classification":
            size = 299 if "inception" in name else 224  # spec: torchvision documentation of each model
            yield name, _job(device, f"torchvision:{name}", TensorSpec((BATCH, 3, size, size)), labels)
        elif kind == "segmentation":
            pixels = TensorSpec((BATCH, 224, 224), "int64", high=_CLASSES)
            yield name, _job(device, f"torchvision:{name}", TensorSpec((BATCH, 3, 224, 224)), pixels)
        elif kind == "video":  # spec: torchvision's documentation; MViT's position tables need exactly 16 frames of 224 x 224
            yield name, _job(device, f"torchvision:{name}", TensorSpec((BATCH, 3, 16, 224, 224)), labels)
        elif kind == "optical_flow":
            image = TensorSpec((BATCH, 3, 128, 128))
            yield name, _job(device, f"torchvision:{name}", (image, image))
        else:
            yield name, _job(device, f"torchvision:{name}", _detection_batch(name))


def _detection_batch(name: str) -> Any:
    """Return (images, targets) of a torchvision detector, which checks that the boxes have a size."""
    boxes = struct.pack("12f", *(10, 10, 100, 100), *(50, 60, 200, 220), *(5, 5, 50, 300))  # arbitrary
    target: dict[str, TensorSpec] = {
        "boxes": TensorSpec((3, 4), content=boxes),
        "labels": TensorSpec((3,), "int64", high=_CLASSES, fill=1),
    }
    if name.startswith("mask"):
        target["masks"] = TensorSpec((3, 320, 320), "uint8")
    if name.startswith("keypoint"):
        target["keypoints"] = TensorSpec((3, 17, 3))  # spec: torchvision keypoint R-CNN, COCO's 17 points as x, y, visible
    return [TensorSpec((3, 320, 320))] * BATCH, [dict(target) for _ in range(BATCH)]


# ------------------------------------------------------------------------------------------------ timm
def timm_names(count: int = N_TIMM) -> list[str]:
    """Return a seeded sample of timm's constructors, drawn in turn from each of its families."""
    import timm

    rng = random.Random(SEED)
    families = []
    for module in timm.list_modules():
        names = timm.list_models(module=module)
        rng.shuffle(names)
        families.append(names)
    chosen: list[str] = []
    while any(families) and len(chosen) < count:
        chosen += [names.pop() for names in families if names]
    return sorted(chosen[:count])


def timm_jobs(device: Device) -> Iterator[tuple[str, Job]]:
    """Yield (name, job) for the sample, each at the input size of its own configuration."""
    for name in timm_names():
        yield name, timm_job(device, name)


def timm_job(device: Device, name: str) -> Job:
    """Return the job of one timm model; one without a classifier trains on the mean of its features."""
    import timm

    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    shape = tuple(config.input_size) if config is not None else (3, 224, 224)
    classes = config.num_classes if config is not None else 0
    labels = TensorSpec((BATCH,), "int64", high=classes) if classes else None
    return _job(device, f"timm:{name}", TensorSpec((BATCH, *shape)), labels)


# ------------------------------------------------------------------------------------------------ Hugging Face
_VOCABULARY = 128  # arbitrary
# Names differ between model families: each config class takes the ones it knows and keeps the rest as attributes.
_TEXT: dict[str, Any] = {
    "vocab_size": _VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_DECODER = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}
_SEQ2SEQ: dict[str, Any] = {
    "vocab_size": _VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_IMAGE: dict[str, Any] = {
    "image_size": 64, "patch_size": 8, "num_channels": 3, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "num_labels": _CLASSES,
}  # fmt: skip
_SPEECH: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "conv_dim": [16, 16, 16], "conv_kernel": [10, 3, 3], "conv_stride": [5, 2, 2], "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "pad_token_id": 0,
}  # fmt: skip
_SWIN: dict[str, Any] = {
    "image_size": 64,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
    "num_labels": _CLASSES,
}


def _ids(high: int = _VOCABULARY) -> TensorSpec:
    return TensorSpec((BATCH, _LENGTH), "int64", high=high)


def _tokens() -> dict[str, TensorSpec]:
    return {"input_ids": _ids(), "labels": _ids()}


def _image(size: int = 64) -> dict[str, TensorSpec]:
    return {"pixel_values": TensorSpec((BATCH, 3, size, size)), "labels": TensorSpec((BATCH,), "int64", high=_CLASSES)}


def _sound() -> dict[str, TensorSpec]:
    return {"input_values": TensorSpec((BATCH, 4000)), "labels": TensorSpec((BATCH, 8), "int64", high=32)}


def _boxes() -> list[dict[str, TensorSpec]]:
    return [{"class_labels": TensorSpec((2,), "int64", high=_CLASSES), "boxes": TensorSpec((2, 4))} for _ in range(BATCH)]


_CLIP = {
    "architectures": ["CLIPModel"],
    "text_config": {**_TEXT, "projection_dim": 16},
    "vision_config": {**_IMAGE, "projection_dim": 16},
    "projection_dim": 16,
}
_PAIRS = {"input_ids": _ids(), "pixel_values": TensorSpec((BATCH, 3, 64, 64)), "return_loss": True}

# model type -> (configuration, batch)
HUGGING_FACE: dict[str, tuple[dict[str, Any], Any]] = {
    "bert": (_TEXT, _tokens()),
    "roberta": (_TEXT, _tokens()),
    "xlm-roberta": (_TEXT, _tokens()),
    "electra": ({**_TEXT, "embedding_size": 32}, _tokens()),
    "albert": ({**_TEXT, "embedding_size": 16}, _tokens()),
    "distilbert": ({"vocab_size": _VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, _tokens()),
    "deberta-v2": ({**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, _tokens()),
    "longformer": ({**_TEXT, "attention_window": 16}, _tokens()),
    "big_bird": ({**_TEXT, "block_size": 8, "num_random_blocks": 1, "max_position_embeddings": 256}, {k: TensorSpec((BATCH, 128), "int64", high=_VOCABULARY) for k in ("input_ids", "labels")}),  # noqa: E501
    "modernbert": ({**_TEXT, "local_attention": 16}, _tokens()),
    "gpt2": ({"vocab_size": _VOCABULARY, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}, _tokens()),  # noqa: E501
    "opt": ({**_TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32}, _tokens()),
    "gpt_neo": ({"vocab_size": _VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2}, _tokens()),  # noqa: E501
    "gpt_neox": (_TEXT, _tokens()),
    "bloom": ({"vocab_size": _VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 0}, _tokens()),
    "falcon": ({**_TEXT, "alibi": False}, _tokens()),
    "phi": (_TEXT, _tokens()),
    "phi3": (_DECODER, _tokens()),
    "gemma": (_DECODER, _tokens()),
    "gemma2": ({**_DECODER, "sliding_window": 16}, _tokens()),
    "llama": (_DECODER, _tokens()),
    "mistral": ({**_DECODER, "sliding_window": 16}, _tokens()),
    "mixtral": ({**_DECODER, "num_local_experts": 4}, _tokens()),
    "qwen2": (_DECODER, _tokens()),
    "qwen3": (_DECODER, _tokens()),
    "mamba": ({"vocab_size": _VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, _tokens()),
    "t5": ({"vocab_size": _VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}, _tokens()),  # noqa: E501
    "t5gemma": ({"encoder": _DECODER, "decoder": _DECODER, "vocab_size": _VOCABULARY}, _tokens()),
    "bart": (_SEQ2SEQ, _tokens()),
    "vit": (_IMAGE, _image()),
    "deit": ({**_IMAGE, "architectures": ["DeiTForImageClassification"]}, _image()),
    "beit": (_IMAGE, _image()),
    "swin": (_SWIN, _image()),
    "convnext": ({"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "num_labels": _CLASSES}, _image()),
    "segformer": (
        {"num_labels": _CLASSES, "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 2, 4], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16, "architectures": ["SegformerForSemanticSegmentation"]},  # noqa: E501
        {"pixel_values": TensorSpec((BATCH, 3, 64, 64)), "labels": TensorSpec((BATCH, 64, 64), "int64", high=_CLASSES)},
    ),
    "detr": (
        {**_SEQ2SEQ, "num_queries": 8, "num_labels": _CLASSES, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,  # noqa: E501
         "backbone_config": {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "out_features": ["stage4"]}},  # noqa: E501
        {"pixel_values": TensorSpec((BATCH, 3, 64, 64)), "labels": _boxes()},
    ),
    "clip": (_CLIP, _PAIRS),
    "whisper": (
        {**_SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 50, "max_target_positions": 64, "suppress_tokens": None, "begin_suppress_tokens": None},  # noqa: E501
        {"input_features": TensorSpec((BATCH, 16, 100)), "labels": TensorSpec((BATCH, 16), "int64", high=_VOCABULARY)},
    ),
    "wav2vec2": ({**_SPEECH, "architectures": ["Wav2Vec2ForCTC"]}, _sound()),
    "hubert": ({**_SPEECH, "architectures": ["HubertForCTC"]}, _sound()),
}  # fmt: skip


def hugging_face_jobs(device: Device, folder: Path) -> Iterator[tuple[str, Job]]:
    """Yield (model type, job); each configuration is written to `folder` as a config.json."""
    for name in HUGGING_FACE:
        yield name, hugging_face_job(device, name, folder)


def hugging_face_job(device: Device, name: str, folder: Path) -> Job:
    """Return the job of one architecture of `HUGGING_FACE`, trained on its own loss."""
    config, batch = HUGGING_FACE[name]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"model_type": name, **config}, indent=1))
    return _job(device, f"hf:{path.resolve()}", batch)


# ------------------------------------------------------------------------------------------------ large models
LLAMA_70B: dict[str, Any] = {  # spec: the shape of Llama-3-70B (model card, Meta, 2024)
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
    "max_position_embeddings": 8192, "dtype": "bfloat16",
}  # fmt: skip


def large_jobs(device: Device, folder: Path) -> Iterator[tuple[str, Job]]:
    """Yield (name, job) of models whose weights would not fit on this machine, to test the cost of building them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "llama-3-70b.json"
    path.write_text(json.dumps(LLAMA_70B, indent=1))
    ids = TensorSpec((1, 2048), "int64", high=128256)
    yield "hf llama-3-70b", _job(device, f"hf:{path.resolve()}", {"input_ids": ids, "labels": ids})
    yield "torchvision vit_h_14", _job(device, "torchvision:vit_h_14", TensorSpec((BATCH, 3, 224, 224)))
    for name in ("vit_gigantic_patch14_clip_224", "eva_giant_patch14_224", "vit_7b_patch16_dinov3", "convnext_xxlarge"):
        yield f"timm {name}", timm_job(device, name)
