"""Ready-made models: their names exist in the libraries, their config entries are known, and the table is correct."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from vramcast.datasets.workloads.image_models import SEGMENTATION, TIMM, TORCHVISION
from vramcast.datasets.workloads.language import TYPES, draw_hugging_face
from vramcast.datasets.workloads.sampling import Draw
from vramcast.datasets.workloads.zoo import draw_timm

Need = Callable[[str], Any]


def test_torchvision_has_every_model(need: Need) -> None:
    models = need("torchvision").models
    assert set(TORCHVISION) <= set(models.list_models(module=models))
    assert set(SEGMENTATION) <= set(models.list_models(module=models.segmentation))


def test_timm_has_every_model_of_that_size(need: Need) -> None:
    timm = need("timm")
    assert [name for name in TIMM if not timm.is_model(name)] == []
    for name, model in TIMM.items():
        config = timm.get_pretrained_cfg(name, allow_unregistered=True)
        assert config is None or config.input_size[-1] == model.side, name


@pytest.mark.parametrize("name", sorted(TIMM)[::12])
def test_table_of_timm_models_is_correct(name: str, need: Need) -> None:
    timm, torch = need("timm"), need("torch")
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timm's own
        model = timm.create_model(name, pretrained=False)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(TIMM[name].parameters, rel=0.01)
    if TIMM[name].checkpoints:
        model.set_grad_checkpointing()


@pytest.mark.parametrize("name", ["resnet50", "vit_b_16", "swin_t", "efficientnet_b0"])
def test_table_of_torchvision_models_is_correct(name: str, need: Need) -> None:
    torchvision, torch = need("torchvision"), need("torch")
    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(TORCHVISION[name].parameters, rel=0.01)


def test_never_checkpoints_timm_model_without_switch() -> None:
    drawn = [draw_timm(Draw(index)) for index in range(2000)]
    checkpointed = {workload.name for workload in drawn if workload.checkpointing}
    assert checkpointed
    assert all(TIMM[name].checkpoints for name in checkpointed)


def test_fixed_size_model_gets_its_size() -> None:
    for index in range(1000):
        workload = draw_timm(Draw(index))
        side = int(workload.batch[0].split("x")[-1])
        assert side == TIMM[workload.name].side or TIMM[workload.name].any_side


# ------------------------------------------------------------------------------------------------ Hugging Face
@pytest.mark.integration  # the first of them imports transformers, which takes seconds
@pytest.mark.parametrize("kind", sorted(TYPES))
def test_configs_know_their_entries(kind: str, need: Need) -> None:
    config_class = type(need("transformers").AutoConfig.for_model(kind))
    known = {*config_class().to_dict(), *config_class.attribute_map}
    known |= {"architectures", "num_labels", "decoder_start_token_id"}  # valid for every config, though not in its dictionary
    assert {*TYPES[kind].names, *TYPES[kind].config} - known == set()


def test_hugging_face_shapes_are_valid() -> None:
    kinds = set()
    for index in range(3000):
        workload = draw_hugging_face(Draw(index))
        kind, _, text = (workload.target or "").removeprefix("hf:").partition("?")
        kinds.add(kind)
        config, names = json.loads(text), {what: name for name, what in TYPES[kind].names.items()}
        heads = config[names["heads"]]
        assert config[names["width"]] % heads == 0
        if "groups" in names:
            assert heads % config[names["groups"]] == 0
        if "tokens" in names and workload.batch[0].startswith("input_ids"):
            assert int(workload.batch[0].split(":")[0].split("x")[1]) < config[names["tokens"]]
        if "vocabulary" in names:
            assert f"<{config[names['vocabulary']]}" in workload.batch[-1]
    assert kinds == set(TYPES)


def test_few_models_have_a_billion_parameters() -> None:
    widths = [draw_hugging_face(Draw(index)).name for index in range(3000)]
    assert (
        0.001
        < sum(name in ("llama 2048x16", "llama 3072x28", "qwen2 1536x28", "gemma 2048x18") for name in widths) / 3000
        < 0.1
    )
