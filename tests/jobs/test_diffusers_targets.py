"""Models of diffusers by their id: the table, what is built, and what untrusted rows may name."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.errors import UsageError
from vramcast.jobs import hub, targets

ROWS = hub._tables(hub.DIFFUSERS)["models"]
TINY = 'UNet2DModel?{"block_out_channels": [32], "down_block_types": ["DownBlock2D"], "up_block_types": ["UpBlock2D"]}'
# The numbers of parameters that the models' authors name, in millions.
PUBLISHED = {
    "stable-diffusion-v1-5/stable-diffusion-v1-5": 860,  # https://github.com/CompVis/stable-diffusion
    "stabilityai/stable-diffusion-xl-base-1.0": 2_600,  # Podell et al. 2023, table 1
    "black-forest-labs/FLUX.1-dev": 12_000,  # https://github.com/black-forest-labs/flux
    "PixArt-alpha/PixArt-XL-2-1024-MS": 600,  # Chen et al. 2023: 0.6 billion
    "fal/AuraFlow": 6_800,  # its card
    "Efficient-Large-Model/Sana_1600M_1024px_diffusers": 1_600,  # its name
    "hunyuanvideo-community/HunyuanVideo": 13_000,  # Kong et al. 2024
    "google/ddpm-cat-256": 114,  # Ho et al. 2020, appendix B
}


def test_every_row_has_a_source_with_permalink_date_and_licence() -> None:
    tables = hub._tables(hub.DIFFUSERS)
    assert {row["source"] for row in ROWS.values() if "like" not in row} == set(tables["sources"])
    for source in tables["sources"].values():
        assert re.search(r"^https://github\.com/.*/[0-9a-f]{40}(/|$)", source["url"])
        assert isinstance(source["date"], datetime.date)
        assert source["licence"]


@pytest.mark.parametrize("name", ROWS)
def test_row_of_the_table_is_trusted(name: str) -> None:
    assert hub.is_hub_id(name)
    assert targets.refusal(f"diffusers:{name}") == ""


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("diffusers:somebody/something", "the hub is not asked"),
        ("diffusers:./unet/config.json", "not in the data set's folder"),
        ("diffusers:/etc/config.json", "not in the data set's folder"),
        ('diffusers:UNet2DModel?{"pretrained_model": "x"}', "may open a file"),
        ("diffusers:a:b", "download location"),
    ],
)
def test_untrusted_row_names_no_path_and_asks_no_network(target: str, reason: str) -> None:
    assert reason in targets.refusal(target)


def test_class_of_diffusers_is_trusted() -> None:
    assert targets.refusal(f"diffusers:{TINY}") == ""


def test_id_of_the_other_library_names_its_scheme() -> None:
    assert "write hf:openai-community/gpt2" in hub.not_in_table("openai-community/gpt2", hub.DIFFUSERS)
    assert "write diffusers:black-forest-labs/FLUX.1-dev" in hub.not_in_table("black-forest-labs/FLUX.1-dev")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "diffusers", None)
    with pytest.raises(UsageError, match="pip install diffusers"):
        targets.build("diffusers:UNet2DModel")


def test_denoiser_is_told_from_an_autoencoder() -> None:
    assert targets.is_denoiser("diffusers:black-forest-labs/FLUX.1-dev")
    assert not targets.is_denoiser("diffusers:stabilityai/sd-vae-ft-mse")
    assert not targets.is_denoiser("torchvision:resnet18")


@pytest.mark.integration  # imports diffusers, for seconds
def test_model_is_built_from_its_class_and_from_a_config(need: Callable[[str], Any], tmp_path: Path) -> None:
    torch, diffusers = need("torch"), need("diffusers")
    config = {"_class_name": "UNet2DModel", "_diffusers_version": "0", "unknown": 1, **json.loads(TINY.partition("?")[2])}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        assert isinstance(targets.build(f"diffusers:{TINY}"), diffusers.UNet2DModel)
        assert isinstance(targets.build(f"diffusers:{tmp_path}/config.json"), diffusers.UNet2DModel)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("diffusers:UNet2DModl", "did you mean UNet2DModel"),
        ("diffusers:FLUX.1-dev", "did you mean diffusers:black-forest-labs/FLUX.1-dev"),
        ("diffusers:DDPMScheduler", "has no model 'DDPMScheduler'"),
        ('diffusers:UNet2DModel?{"layers": 1}', "does not accept the argument 'layers'"),
        ('diffusers:UNet2DModel?{"layers_per_block": "a"}', "does not accept these arguments"),
    ],
)
def test_wrong_name_or_argument_is_answered(target: str, message: str, need: Callable[[str], Any]) -> None:
    need("diffusers")
    with pytest.raises(UsageError, match=message):
        targets.build(target)


@pytest.mark.integration  # models of billions of parameters without weights, for seconds
@pytest.mark.parametrize("name", PUBLISHED)
def test_model_has_the_published_number_of_parameters(name: str, need: Callable[[str], Any]) -> None:
    torch, _ = need("torch"), need("diffusers")
    with torch.device("meta"):
        model = targets.build(f"diffusers:{name}")
    found = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert found == pytest.approx(PUBLISHED[name], rel=0.02)
