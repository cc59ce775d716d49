"""Inputs of diffusers' models: the latents of images or clips, with the conditions that the model's forward takes.

The names of forward's arguments and the model's configuration determine the inputs: the VAE and the text encoders run before
the training step, and only what they return arrives here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from vramcast.core.errors import UsageError
from vramcast.jobs.job import Job, TensorSpec
from vramcast.jobs.sizes import Inputs, Sizes
from vramcast.tracer.program.task_inputs.taken import BatchSizes, several

_CLIP_TOKENS: Final = 77  # spec: CLIP's text encoders: max_position_embeddings
_T5_TOKENS: Final = 512  # spec: examples/dreambooth/train_dreambooth_lora_flux.py: --max_sequence_length
# spec: diffusers 0.42, the pipelines' max_sequence_length; SD3: 77 of CLIP and 77 of T5, train_dreambooth_sd3.py
_TOKENS: Final = {
    "SD3": 154, "HunyuanVideo": 256, "LTXVideo": 128, "Lumina2": 256, "AuraFlow": 256, "Sana": 300, "PixArt": 300, "Mochi": 256,
}  # fmt: skip
_PIXART_ALPHA_TOKENS: Final = 120  # spec: diffusers 0.42, PixArtAlphaPipeline
# spec: diffusers 0.42, the pipelines' autoencoders: pixels and images in one value of the latents, each way and in time
_COMPRESSION: Final = {"LTXVideo": (32, 8), "Sana": (32, 1), "Mochi": (8, 6)}
# spec: diffusers 0.42, the pipelines' defaults: number of images, height, width
_CLIPS: Final = {"HunyuanVideo": (129, 720, 1280), "Wan": (81, 480, 832), "LTXVideo": (161, 512, 704), "Mochi": (19, 480, 848)}
_OTHER_CLIP: Final = (16, 512, 512)  # arbitrary: the usual size of the UNets of diffusers for clips
_IMAGE_SIZE: Final = 1024  # spec: diffusers 0.42, FluxPipeline: default_sample_size x vae_scale_factor
_POOLED_WIDTH: Final = 1280  # spec: CLIP ViT-bigG-14, the pooled text embedding of Stable Diffusion XL


def inputs(model: torch.nn.Module, job: Job) -> Inputs:
    """Return the inputs, and the noise to be predicted as labels.

    Raises:
        UsageError: The model's forward takes an argument that is not known here.
    """
    asked = _Denoiser(model, BatchSizes(job.sizes or Sizes(), job.target or ""))
    batch = {}
    for name, parameter in inspect.signature(model.forward).parameters.items():
        value = _MAKERS[name](asked) if name in _MAKERS else None
        if value is not None:
            batch[name] = value
        elif parameter.default is parameter.empty:
            raise UsageError(f"The inputs of {type(model).__name__} are unknown ('{name}'): give each tensor with --batch.")
    labels = TensorSpec(asked.latents(asked.out_channels)) if job.training.mode == "train" else None
    return asked.taken.inputs(batch, labels, asked.text)


def _by_class(table: dict[str, Any], model: torch.nn.Module, default: Any) -> Any:
    return next((value for start, value in table.items() if type(model).__name__.startswith(start)), default)


@dataclass(frozen=True, slots=True)
class _Denoiser:
    """A model, and the sizes that are taken for it."""

    model: Any
    taken: BatchSizes

    def get(self, *names: str) -> Any:
        """Return the first value of the configuration that is set."""
        return next((self.model.config[name] for name in names if self.model.config.get(name) is not None), None)

    def takes(self, name: str) -> bool:
        """Return whether the model's forward has an argument."""
        return name in inspect.signature(self.model.forward).parameters

    @property
    def is_video(self) -> bool:
        """True if it takes clips instead of images."""
        return "3D" in type(self.model).__name__

    @property
    def compression(self) -> tuple[int, int]:
        """Pixels, and images of a clip, that become one value of the latents."""
        if self.takes("sample") and (self.get("in_channels") == 3 or not self.takes("timestep")):
            return 1, 1  # the images themselves, as of an autoencoder
        found: tuple[int, int] = _by_class(_COMPRESSION, self.model, (8, 4 if self.takes("hidden_states") else 1))
        return found

    @property
    def own_size(self) -> tuple[int, int, int]:
        """Number of images in a clip, height and width in pixels, by default."""
        pixels, _ = self.compression
        if (frames := self.get("sample_frames")) is not None:
            return frames, self.get("sample_height") * pixels, self.get("sample_width") * pixels
        if self.is_video:
            clip: tuple[int, int, int] = _by_class(_CLIPS, self.model, _OTHER_CLIP)
            return clip
        size = self.get("sample_size")
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return (1, height * pixels, width * pixels) if size else (1, _IMAGE_SIZE, _IMAGE_SIZE)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Frames, height and width of the latents."""
        frames, *size = self.own_size
        height, width = self.taken.image(*size)
        pixels, images = self.compression
        if height % pixels or width % pixels:
            raise UsageError(f"--image-size {height}: {self.taken.model} takes multiples of {pixels}.")
        if self.is_video:
            frames = self.taken.take("seq", frames)
        return (frames - 1) // images + 1, height // pixels, width // pixels

    @property
    def packed(self) -> int:
        """Number of values of the latents, each way, in one token of the input; 0: the model itself divides the latents."""
        if self.takes("num_frames") and self.takes("height"):
            return 1
        return 2 if self.takes("img_ids") or self.takes("img_shapes") else 0

    @property
    def out_channels(self) -> int:
        """Channels of the prediction."""
        if self.packed:
            return int(self.get("in_channels"))
        return int(self.get("out_channels") or vars(self.model).get("out_channels") or self.get("in_channels"))

    @property
    def text(self) -> str:
        """The inputs in words."""
        frames, height, width = self.own_size
        height, width = self.taken.image(height, width)
        n = self.taken.batch_size
        if self.is_video:
            return f"{several(n, 'clip')} of {self.taken.take('seq', frames)} images of {height} x {width}"
        tokens = self.taken.sizes.get("seq")
        return f"{several(n, 'image')} of {height} x {width}" + (f" with {tokens} tokens" if tokens else "")

    @property
    def tokens(self) -> int:
        """Length of the text."""
        if self.model.__class__.__name__.startswith("UNet"):
            default = _CLIP_TOKENS
        elif getattr(self.model, "use_additional_conditions", False):
            default = _PIXART_ALPHA_TOKENS
        else:
            default = self.get("max_text_seq_length", "max_sequence_length") or _by_class(_TOKENS, self.model, _T5_TOKENS)
        return default if self.is_video else self.taken.take("seq", default)

    def latents(self, channels: int | None = None) -> tuple[int, ...]:
        """Return the shape of latents with this number of channels."""
        n, (frames, height, width) = self.taken.batch_size, self.grid
        channels = channels or int(self.get("in_channels"))
        if self.packed:
            return n, frames * (height // self.packed) * (width // self.packed), channels
        if not self.is_video:
            return n, channels, height, width
        frames_first = self.get("sample_frames") is not None
        return (n, frames, channels, height, width) if frames_first else (n, channels, frames, height, width)

    def per_sample(self, *shape: int, dtype: str = "float32", high: int | None = None) -> TensorSpec:
        """Return a tensor with this shape for each sample."""
        return TensorSpec((self.taken.batch_size, *shape), dtype, high=high)


def _latents(asked: _Denoiser) -> TensorSpec | None:
    if not asked.takes("timestep") and asked.get("sample_size") is None:
        return None  # an autoencoder of something other than images
    return TensorSpec(asked.latents())


def _timestep(asked: _Denoiser) -> TensorSpec:
    if asked.packed == 2 or type(asked.model).__name__.startswith(("Lumina2", "AuraFlow")):
        return asked.per_sample()  # a share of the steps instead of a number
    return asked.per_sample(dtype="int64", high=1000)  # spec: the schedulers' num_train_timesteps


def _text(asked: _Denoiser) -> TensorSpec | None:
    width = asked.get(
        "encoder_hid_dim", "joint_attention_dim", "caption_channels", "text_embed_dim", "text_dim", "cap_feat_dim",
        "cross_attention_dim",
    )  # fmt: skip
    return None if width is None else asked.per_sample(asked.tokens, width)


def _text_mask(asked: _Denoiser) -> TensorSpec | None:
    if asked.model.__class__.__name__.startswith("UNet"):
        return None
    return TensorSpec((asked.taken.batch_size, asked.tokens), "int64", fill=1)


def _pooled(asked: _Denoiser) -> TensorSpec | None:
    width = asked.get("pooled_projection_dim")
    return None if width is None else asked.per_sample(width)


def _guidance(asked: _Denoiser) -> TensorSpec | None:
    return asked.per_sample() if asked.get("guidance_embeds") else None


def _added(asked: _Denoiser) -> dict[str, TensorSpec] | None:
    """Return the added conditions of Stable Diffusion XL, of Kandinsky 2.2, and of PixArt."""
    kind = asked.get("addition_embed_type")
    if kind == "text_time":
        width, step = asked.get("projection_class_embeddings_input_dim"), asked.get("addition_time_embed_dim")
        # Six numbers of sizes and crops; five with an aesthetic score, as of the refiner.
        n = (width - _POOLED_WIDTH) // step if width > _POOLED_WIDTH else 6
        return {"text_embeds": asked.per_sample(width - n * step), "time_ids": asked.per_sample(n)}
    if kind == "image":
        return {"image_embeds": asked.per_sample(asked.get("encoder_hid_dim"))}
    if getattr(asked.model, "use_additional_conditions", False):
        return {"resolution": asked.per_sample(2), "aspect_ratio": asked.per_sample(1)}
    return None


def _class_labels(asked: _Denoiser) -> TensorSpec | None:
    n = asked.get("num_class_embeds") or (
        asked.get("num_embeds_ada_norm") if not asked.takes("encoder_hidden_states") else None
    )
    return None if n is None else asked.per_sample(dtype="int64", high=n)


def _positions(asked: _Denoiser, n: int) -> TensorSpec:
    return TensorSpec((n, len(asked.get("axes_dims_rope"))))


def _rotary(asked: _Denoiser) -> Any:
    """Return cosines and sines of CogVideoX's positions."""
    if not asked.get("use_rotary_positional_embeddings"):
        return None
    frames, height, width = asked.grid
    patch = asked.get("patch_size")
    table = TensorSpec((frames * (height // patch) * (width // patch), asked.get("attention_head_dim")))
    return table, table


# By the name of the argument of forward; None: the model does not take it.
_MAKERS: Final[dict[str, Callable[[_Denoiser], Any]]] = {
    "sample": _latents,
    "hidden_states": _latents,
    "timestep": _timestep,
    "encoder_hidden_states": _text,
    "encoder_attention_mask": _text_mask,
    "encoder_hidden_states_mask": _text_mask,
    "pooled_projections": _pooled,
    "guidance": _guidance,
    "added_cond_kwargs": _added,
    "class_labels": _class_labels,
    "image_rotary_emb": _rotary,
    "img_ids": lambda asked: _positions(asked, asked.latents()[1]),
    "txt_ids": lambda asked: _positions(asked, asked.tokens),
    "img_shapes": lambda asked: [(1, asked.grid[1] // 2, asked.grid[2] // 2)] * asked.taken.batch_size,
    "num_frames": lambda asked: asked.grid[0],
    "height": lambda asked: asked.grid[1],
    "width": lambda asked: asked.grid[2],
}
