"""Inputs of transformers' models that read images and text: two encoders, or a language model with images among its tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from vramcast.jobs.job import TensorSpec
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.program.task_inputs.hf_model import HfModel
from vramcast.tracer.program.task_inputs.hf_vision import image_size, with_other_size
from vramcast.tracer.program.task_inputs.taken import integers, several

_PACKED_SIZE: Final = 448  # arbitrary: a model of any image size names none; 448 is a multiple of its patches


def two_encoders(of: HfModel) -> Inputs:
    """Return the inputs of an encoder of images and one of text, such as CLIP's; its own loss compares both."""
    height, width = image_size(of, of.config.vision_config)
    length, n = of.length(of.config.text_config), of.taken.batch_size
    batch: dict[str, Any] = {"input_ids": of.tokens(n, length), "pixel_values": of.floats(n, 3, height, width)}
    batch |= with_other_size(of, of.config.vision_config)
    if of.is_training:
        batch["return_loss"] = True
    return of.taken.inputs(batch, None, f"{several(n, 'image')} of {height} x {width} with {length} tokens")


def language_model(of: HfModel) -> Inputs:
    """Return the inputs of a language model with one image in each text; as many tokens stand for it as the model expects."""
    vision: Any = getattr(of.config, "vision_config", None)
    if of.takes("image_grid_thw"):
        height, width = (_whole(size, vision) for size in of.taken.image(_PACKED_SIZE))
    else:
        height, width = image_size(of, vision)
    n = of.taken.batch_size
    count = _TOKENS.get(of.config.model_type)
    if count is None:
        of.refuse("the number of tokens that stand for an image is unknown for its model type")
    tokens = count(of.config, (height // vision.patch_size) * (width // vision.patch_size))
    length = of.length(of.text, at_least=tokens)
    batch = {"input_ids": _text_with_image(of, n, length, tokens)} | _images(of, n, height, width)
    if of.is_training:
        # spec: Gemma3 and PaliGemma need the types to train
        batch |= {name: TensorSpec((n, length), "int64", fill=0) for name in ("token_type_ids",) if of.takes(name)}
        batch["labels"] = of.tokens(n, length)
    if of.takes("mm_token_type_ids"):
        batch["mm_token_type_ids"] = integers((n, length), ([1] * tokens + [0] * (length - tokens)) * n)
    words = f"{several(n, 'image')} of {height} x {width} with {length} tokens, {tokens} of them the image's"
    return of.taken.inputs(batch | with_other_size(of, vision), None, words)


def _text_with_image(of: HfModel, n: int, length: int, tokens: int) -> TensorSpec:
    """Return token ids that begin with those of an image; all others are the same word."""
    image = next(found for name in IMAGE_TOKEN if (found := getattr(of.config, name, None)) is not None)
    special = {getattr(of.config, name, None) for name in dir(of.config) if name.endswith(("_token_id", "_token_index"))}
    word = next(one for one in range(of.vocabulary) if one not in special)
    return integers((n, length), ([image] * tokens + [word] * (length - tokens)) * n)


def _images(of: HfModel, n: int, height: int, width: int) -> dict[str, Any]:
    vision = of.config.vision_config
    if of.takes("image_grid_thw"):  # all patches of all images in one row, each a row of pixels
        rows, columns = height // vision.patch_size, width // vision.patch_size
        channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3)
        pixels = channels * vision.temporal_patch_size * vision.patch_size**2
        grid = integers((n, 3), [1, rows, columns] * n)
        return {"pixel_values": of.floats(n * rows * columns, pixels), "image_grid_thw": grid}
    several = (1,) if of.takes("pixel_attention_mask") else ()  # the family of Idefics takes several images for each text
    return {"pixel_values": of.floats(n, *several, 3, height, width)}


def _whole(size: int, vision: Any) -> int:
    """Return the nearest smaller size of whole groups of patches, as the model's image processor does."""
    group = vision.patch_size * vision.spatial_merge_size
    return max(size // group, 1) * group


def _merged(config: Any, patches: int) -> int:
    return int(patches // config.vision_config.spatial_merge_size**2)


def _llava(config: Any, patches: int) -> int:
    return patches + (config.vision_feature_select_strategy == "full")  # and the class token


def _shuffled(config: Any, patches: int) -> int:
    return int(patches // config.scale_factor**2)


# The number of tokens that stand for an image, by its number of patches. spec: transformers 5.17, the processors' own rules
_TOKENS: Final[dict[str, Callable[[Any, int], int]]] = {
    "llava": _llava,
    "vipllava": lambda config, patches: patches,
    "paligemma": lambda config, patches: patches,
    "gemma3": lambda config, patches: int(config.mm_tokens_per_image),
    "idefics2": lambda config, patches: int(config.perceiver_config.resampler_n_latents),
    "idefics3": _shuffled,
    "smolvlm": _shuffled,
    "internvl": lambda config, patches: int(patches * config.downsample_ratio**2),
    "qwen2_vl": _merged,
    "qwen2_5_vl": _merged,
    "qwen3_vl": _merged,
    "qwen3_vl_moe": _merged,
}
IMAGE_TOKEN: Final = ("image_token_id", "image_token_index")
