"""Checkpoints for public training scripts: the true shapes of public models without their weights, using no disk space.

Models of transformers come from `vramcast stub-checkpoint`; a pipeline of diffusers has such files in one folder per part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vramcast.jobs.stub_checkpoint import tensors_of, write_safetensors, write_stub

# spec: config.json of the models with these names
_QWEN_05B: Final = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True, "max_position_embeddings": 32_768,
    "bos_token_id": 151_643, "eos_token_id": 151_645, "pad_token_id": 151_643, "dtype": "bfloat16",
}  # fmt: skip
_QWEN3_06B: Final = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": True,
    "max_position_embeddings": 40_960, "bos_token_id": 151_643, "eos_token_id": 151_645, "pad_token_id": 151_643,
    "dtype": "bfloat16",
}  # fmt: skip
_LLAMA_8B: Final = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128_256, "tie_word_embeddings": False, "max_position_embeddings": 8192,
    "bos_token_id": 128_000, "eos_token_id": 128_009, "pad_token_id": 128_004, "dtype": "bfloat16",
}  # fmt: skip
_LLAMA_1B: Final = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256, "tie_word_embeddings": True,
    "max_position_embeddings": 131_072, "bos_token_id": 128_000, "eos_token_id": 128_001, "pad_token_id": 128_004,
    "dtype": "bfloat16",
}  # fmt: skip

# spec: stable-diffusion-v1-5, unet/config.json (in CompVis/stable-diffusion: configs/stable-diffusion/v1-inference.yaml)
_UNET: Final = {"sample_size": 64, "cross_attention_dim": 768}
# spec: the same, vae/config.json; sd-vae-ft-ema's
_VAE: Final = {
    "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "sample_size": 512,
    "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4,
}  # fmt: skip
# spec: openai/clip-vit-large-patch14, config.json, text_config
_CLIP_TEXT: Final = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "projection_dim": 768,
    "vocab_size": 49_408, "max_position_embeddings": 77,
}  # fmt: skip
_SCHEDULER: Final = {  # spec: stable-diffusion-v1-5, scheduler/scheduler_config.json
    "_class_name": "PNDMScheduler", "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
    "num_train_timesteps": 1000, "set_alpha_to_one": False, "skip_prk_steps": True, "steps_offset": 1, "clip_sample": False,
}  # fmt: skip


def language_model(folder: Path, config: Mapping[str, Any]) -> None:
    """Write a model of transformers like `vramcast stub-checkpoint CONFIG`."""
    source = folder.parent / f"{folder.name}.json"
    source.write_text(json.dumps(config), encoding="utf-8")
    write_stub(str(source), folder)


def qwen_05b(folder: Path) -> None:
    """Write Qwen2.5-0.5B."""
    language_model(folder, _QWEN_05B)


def qwen3_06b(folder: Path) -> None:
    """Write Qwen3-0.6B."""
    language_model(folder, _QWEN3_06B)


def llama_8b(folder: Path) -> None:
    """Write Llama 3 8B."""
    language_model(folder, _LLAMA_8B)


def llama_1b(folder: Path) -> None:
    """Write Llama 3.2 1B."""
    language_model(folder, _LLAMA_1B)


def gpt2(folder: Path) -> None:
    """Write GPT-2."""
    write_stub("gpt2", folder)


def bert(folder: Path) -> None:
    """Write BERT-base."""
    write_stub("bert", folder)


def _part(folder: Path, kind: Any, config: Mapping[str, Any]) -> None:
    """Write a network of diffusers."""
    import torch

    with torch.device("meta"):
        model = kind(**config)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_config(folder)
    write_safetensors(tensors_of(model), folder, "diffusion_pytorch_model")


def vae(folder: Path) -> None:
    """Write Stable Diffusion's autoencoder."""
    from diffusers import AutoencoderKL

    _part(folder, AutoencoderKL, _VAE)


def stable_diffusion(folder: Path) -> None:
    """Write Stable Diffusion 1.5 as a pipeline of diffusers."""
    from diffusers import UNet2DConditionModel
    from transformers import CLIPTextConfig

    vae(folder / "vae")
    _part(folder / "unet", UNet2DConditionModel, _UNET)
    text = {**CLIPTextConfig(**_CLIP_TEXT).to_dict(), "architectures": ["CLIPTextModel"]}
    _clip_text(folder / "text_encoder", text)
    _clip_tokenizer(folder / "tokenizer", _CLIP_TEXT["vocab_size"])
    (folder / "scheduler").mkdir(exist_ok=True)
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(_SCHEDULER), encoding="utf-8")
    index = {
        "_class_name": "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "scheduler": ["diffusers", "PNDMScheduler"],
        "safety_checker": [None, None],
        "feature_extractor": [None, None],
        "requires_safety_checker": False,
    }
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")


def _clip_text(folder: Path, config: Mapping[str, Any]) -> None:
    """Write CLIP's text encoder."""
    import torch
    from transformers import CLIPTextConfig, CLIPTextModel

    with torch.device("meta"):
        model = CLIPTextModel(CLIPTextConfig(**config))
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    write_safetensors(tensors_of(model), folder)


def _clip_tokenizer(folder: Path, size: int) -> None:
    """Write a tokenizer of CLIP's kind and size, whose tokens are single bytes."""
    from transformers import CLIPTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
    names = [*letters, *(f"{letter}</w>" for letter in letters)]
    names += [f"<{i}>" for i in range(size - len(names) - 2)] + ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    CLIPTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=_CLIP_TEXT["max_position_embeddings"]
    ).save_pretrained(folder)


def torch_hub(folder: Path) -> None:
    """Write ResNet-50's weights to torchvision's download folder."""
    import torch
    from torchvision.models import ResNet50_Weights, resnet50

    place = folder / "hub" / "checkpoints"
    place.mkdir(parents=True, exist_ok=True)
    torch.save(resnet50().state_dict(), place / ResNet50_Weights.IMAGENET1K_V1.url.rpartition("/")[2])
