"""The inputs of diffusers' models, compared with the models themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vramcast.core.errors import UsageError
from vramcast.estimates.estimator import Estimator
from vramcast.hardware.cards import device
from vramcast.jobs import hub, targets
from vramcast.jobs.job import Job, TensorSpec, map_batch
from vramcast.jobs.sizes import Inputs, Sizes
from vramcast.tracer.program.model_program import first_float
from vramcast.tracer.program.task_inputs.by_scheme import inputs_of

pytestmark = pytest.mark.integration  # imports diffusers, for seconds

IDS = [name for name, row in hub._tables(hub.DIFFUSERS)["models"].items() if "like" not in row or "config" in row]
TINY = (
    'diffusers:UNet2DConditionModel?{"sample_size": 8, "block_out_channels": [32, 64], "cross_attention_dim": 32, '
    '"down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"]}'
)


@pytest.fixture(autouse=True)
def _needs_diffusers(need: Callable[[str], Any]) -> None:
    need("diffusers")


def _job(target: str, **sizes: int) -> Job:
    return Job(target=target, batch=None, device=device("h200"), sizes=Sizes(**sizes))


def _made(target: str, **sizes: int) -> tuple[Any, Inputs]:
    with torch.device("meta"):
        model = targets.build(target)
    made = inputs_of(_job(target, **sizes), model)
    assert made is not None
    return model, made


def _on_meta(leaf: Any) -> Any:
    return torch.empty(leaf.shape, dtype=getattr(torch, leaf.dtype), device="meta") if isinstance(leaf, TensorSpec) else leaf


@pytest.mark.parametrize("name", IDS)
def test_model_takes_its_inputs_and_predicts_what_the_labels_hold(name: str) -> None:
    model, made = _made(f"diffusers:{name}", batch_size=2)
    with torch.no_grad():
        predicted = first_float(model(**map_batch(made.batch, _on_meta)))
    assert predicted is not None
    assert tuple(predicted.shape) == made.labels.shape


def test_image_size_and_length_determine_latents_and_text() -> None:
    _, made = _made("diffusers:stabilityai/stable-diffusion-xl-base-1.0", batch_size=3, image_size=512, seq=154)
    assert made.batch["sample"].shape == (3, 4, 64, 64)
    assert made.batch["encoder_hidden_states"].shape == (3, 154, 2048)
    added = made.batch["added_cond_kwargs"]
    assert (added["text_embeds"].shape, added["time_ids"].shape) == ((3, 1280), (3, 6))
    assert made.sizes.words == "3 images of 512 x 512 with 154 tokens"


def test_length_of_a_clip_is_its_number_of_images() -> None:
    _, made = _made("diffusers:Wan-AI/Wan2.1-T2V-1.3B-Diffusers", batch_size=1, seq=49)
    assert made.batch["hidden_states"].shape == (1, 16, 13, 60, 104)


def test_size_between_two_latents_is_refused() -> None:
    with pytest.raises(UsageError, match="multiples of 8"):
        _made("diffusers:black-forest-labs/FLUX.1-dev", image_size=1023)


def test_model_with_unknown_inputs_is_refused() -> None:
    with pytest.raises(UsageError, match="The inputs of StableCascadeUNet are unknown"):
        _made("diffusers:StableCascadeUNet")


@pytest.mark.parametrize("tracer", ["nullgpu", "fake"])
def test_tiny_denoiser_is_estimated(tracer: Any, needs_null_gpu: None) -> None:
    estimate = Estimator(tracer=tracer).estimate_job(_job(TINY, batch_size=2))
    assert estimate.allocated > 0
    assert any("the denoiser alone" in warning for warning in estimate.warnings)
