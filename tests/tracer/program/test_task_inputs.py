"""Inputs that follow from a model's name, on models without storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramcast.core.errors import UsageError  # noqa: E402
from vramcast.estimates.estimator import Estimator  # noqa: E402
from vramcast.hardware.cards import device  # noqa: E402
from vramcast.jobs import targets  # noqa: E402
from vramcast.jobs.job import Job, TensorSpec, specs_in  # noqa: E402
from vramcast.jobs.sizes import Inputs, Sizes  # noqa: E402
from vramcast.jobs.text import JobText  # noqa: E402
from vramcast.tracer.program.task_inputs import by_scheme  # noqa: E402

pytestmark = pytest.mark.integration  # imports of model libraries take seconds

Made = Callable[..., Inputs]
_TINY = '"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32'


@pytest.fixture
def made(make_job: Callable[..., Job], need: Callable[[str], Any]) -> Made:
    """Return a function that makes the inputs of a name and its sizes."""

    def make(target: str, mode: str = "train", **sizes: Any) -> Inputs:
        need({"hf": "transformers"}.get(target.partition(":")[0], target.partition(":")[0]))
        job = make_job(target=target, sizes=Sizes(**sizes), mode=mode)
        with torch.device("meta"):
            found = by_scheme.inputs_of(job, targets.build(target))
        assert found is not None
        return found

    return make


def shapes(batch: Any) -> dict[str, tuple[int, ...]]:
    return {name: one.shape for name, one in batch.items() if isinstance(one, TensorSpec)}


@pytest.mark.parametrize(
    ("target", "expected", "words"),
    [
        ("gpt2?" + '{"n_layer": 1}', {"input_ids": (8, 1024), "labels": (8, 1024)}, "8 x 1024 tokens"),
        ("bert?{" + _TINY + "}", {"input_ids": (8, 512), "labels": (8, 512)}, "8 x 512 tokens"),
        (
            "roberta?{" + _TINY + ', "max_position_embeddings": 514}',
            {"input_ids": (8, 512), "labels": (8, 512)},
            "8 x 512 tokens",
        ),
        ("t5?" + '{"num_layers": 1}', {"input_ids": (8, 1024), "labels": (8, 128)}, "8 x 1024 tokens, and 128 of the answer"),
        (
            "whisper?" + '{"encoder_layers": 1, "decoder_layers": 1}',
            {"input_features": (8, 80, 3000), "labels": (8, 448)},
            "8 x 3000 frames of audio and 448 tokens",
        ),
        (
            "wav2vec2?{" + _TINY + "}",
            {"input_values": (8, 320_000), "labels": (8, 256)},
            "8 x 320000 samples of audio (20 s)",
        ),
        ("vit?{" + _TINY + "}", {"pixel_values": (8, 3, 224, 224), "labels": (8,)}, "8 images of 224 x 224"),
    ],
)
def test_task_of_a_class_gives_inputs_and_labels(made: Made, target: str, expected: dict[str, Any], words: str) -> None:
    found = made(f"hf:{target}")
    assert (shapes(found.batch), found.sizes.text) == (expected, words)
    assert not {"labels", "decoder_input_ids"} & set(made(f"hf:{target}", mode="infer").batch) - {"decoder_input_ids"}


def test_sizes_asked_for_are_taken(made: Made) -> None:
    found = made('hf:gpt2?{"n_layer": 1}', batch_size=2, seq=64)
    assert found.batch["input_ids"].shape == (2, 64)
    assert found.sizes.words == "2 x 64 tokens"


@pytest.mark.parametrize(
    ("target", "sizes", "message"),
    [
        ('hf:gpt2?{"n_layer": 1}', {"seq": 2048}, "--seq is 2048, but .* has positions for 1024 tokens"),
        ('hf:gpt2?{"n_layer": 1}', {"image_size": 64}, "--image-size has no meaning for hf:gpt2"),
        ("torchvision:resnet18", {"seq": 64}, "--seq has no meaning for torchvision:resnet18"),
        ("torchvision:vit_b_16", {"image_size": 384}, r'torchvision:vit_b_16\?\{"image_size": 384\}'),
        ("torchvision:quantized_resnet18", {}, "is for the CPU.* torchvision:resnet18"),
        ("hf:layoutlmv3?{" + _TINY + "}", {}, "do not follow from its name: .* --batch 'input_ids="),
    ],
)
def test_inputs_that_cannot_be_made_name_the_next_step(made: Made, target: str, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(target, **sizes)


def test_image_stands_in_the_text_with_as_many_tokens_as_the_model_checks(made: Made) -> None:
    vision = '{"model_type": "clip_vision_model", ' + _TINY + ', "image_size": 56, "patch_size": 14}'
    text = '{"model_type": "llama", ' + _TINY + ', "vocab_size": 33000}'
    found = made(f'hf:llava?{{"vision_config": {vision}, "text_config": {text}}}', batch_size=2, seq=32)
    ids = torch.frombuffer(bytearray(found.batch["input_ids"].content), dtype=torch.int64).view(2, 32)
    assert (ids == 32000).sum(dim=1).tolist() == [16, 16]  # (56 / 14) squared


def test_two_encoders_compare_images_with_texts(made: Made) -> None:
    found = made('hf:clip?{"architectures": ["CLIPModel"]}')
    assert shapes(found.batch) == {"input_ids": (8, 77), "pixel_values": (8, 3, 224, 224)}
    assert found.batch["return_loss"] is True


@pytest.mark.parametrize(
    ("name", "images", "labels"),
    [
        ("resnet18", (8, 3, 224, 224), (8,)),
        ("fcn_resnet50", (8, 3, 520, 520), (8, 520, 520)),
        ("r3d_18", (8, 3, 16, 112, 112), (8,)),
    ],
)
def test_torchvision_takes_the_sizes_of_its_weights(made: Made, name: str, images: Any, labels: Any) -> None:
    found = made(f"torchvision:{name}")
    assert (found.batch.shape, found.labels.shape) == (images, labels)


def test_detection_has_a_list_of_objects_for_each_image(made: Made) -> None:
    images, objects = made("torchvision:maskrcnn_resnet50_fpn", batch_size=2).batch
    assert [one.shape for one in images] == [(3, 480, 640)] * 2
    assert {name: one.shape for name, one in objects[1].items()} == {"boxes": (8, 4), "labels": (8,), "masks": (8, 480, 640)}
    assert made("torchvision:maskrcnn_resnet50_fpn", mode="infer").labels is None


def test_timm_changes_a_fixed_image_size(made: Made) -> None:
    assert made("timm:vit_tiny_patch16_224").batch.shape == (8, 3, 224, 224)
    assert made("timm:vit_tiny_patch16_224", image_size=64).batch.shape == (8, 3, 64, 64)


@pytest.mark.parametrize("tracer", ["nullgpu", "fake", "cpu"])
def test_estimate_holds_the_inputs_that_each_tracer_made(tracer: str, request: Any) -> None:
    if tracer == "nullgpu":
        request.getfixturevalue("needs_null_gpu")
    job = JobText.of({"target": "timm:resnet10t", "batch_size": 2, "image_size": 64, "steps": 2}).job(device("a100-40gb"))
    found = Estimator(tracer=tracer).estimate_job(job)
    assert [one.shape for one in specs_in(found.job.batch, found.job.labels)] == [(2, 3, 64, 64), (2,)]
    assert found.inputs_text == "2 images of 64 x 64"
    said = found.to_dict()["inputs"]
    assert said["tensors"] == {"0": {"shape": [2, 3, 64, 64], "dtype": "float32"}}
    assert said["sizes"] == {"batch_size": 2, "seq": None, "image_size": 64}
