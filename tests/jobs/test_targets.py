"""TARGETs of untrusted data sets: only those that name a model, and open no file, are built."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.core.errors import UsageError
from vramcast.datasets.run import Workload
from vramcast.datasets.workloads.workload_list import workloads
from vramcast.hardware.cards import device
from vramcast.jobs import targets
from vramcast.jobs.targets import CODE, Target, inlined, refusal, require_name, resolved

OPENS = "may open a file"
REFUSED = {
    'os:system?{"command":"id"}': CODE,
    "subprocess:run": CODE,
    "net.py:net": CODE,
    "/tmp/net.py:net": CODE,
    "torchvision.models:resnet18": CODE,
    "vramcast.tracer.program.model_program:run": CODE,
    "vramcast.datasets.workloads.networks:math": CODE,
    "vramcast.datasets.workloads.networks:nn": CODE,
    "benchmarks.peers.authors.networks:mlp": CODE,
    'torchvision:resnet18?{"weights":"DEFAULT"}': OPENS,
    'torchvision:fcn_resnet50?{"weights_backbone":"DEFAULT"}': OPENS,
    'timm:resnet18?{"pretrained":true}': OPENS,
    'timm:resnet18?{"checkpoint_path":"x"}': OPENS,
    'timm:resnet18?{"pretrained_cfg":{"file":"x"}}': OPENS,
    'timm:resnet18?{"pretrained_cfg_overlay":{"file":"x"}}': OPENS,
    'timm:resnet18?{"cache_dir":"x"}': OPENS,
    'timm:resnet18?{"weight_init":"../x"}': OPENS,
    'hf:bert?{"auto_map":{"AutoModel":"x.Y"}}': OPENS,
    'hf:bert?{"trust_remote_code":true}': OPENS,
    'hf:bert?{"attn_implementation":"someone/kernels"}': OPENS,
    'hf:detr?{"backbone":"resnet50","use_pretrained_backbone":true}': OPENS,
    'hf:llava?{"vision_config":{"backbone":"x"}}': OPENS,
    'hf:llava?{"layers":[{"quantization_config":{"file":"x"}}]}': OPENS,
    "hf:config.json": "not in the data set's folder",
    "hf:/etc/config.json": "not in the data set's folder",
    "hf:./folder": "not in the data set's folder",
    "resnet50": "several models are named resnet50: write torchvision:resnet50 or timm:resnet50",
    "renset50": "is not understood",
    "timm:resnet18?{": "not a JSON object",
    f"timm:resnet18?{'[' * 100_000}": "not a JSON object",
}
TAKEN = (
    "torchvision:resnet18",
    'torchvision:googlenet?{"init_weights":false}',
    'torchvision:resnet18?{"weights":null}',
    'timm:beit_base_patch16_224?{"drop_path_rate":0.1,"img_size":[192,192],"act_layer":"silu"}',
    "hf:bert",
    'hf:deit?{"architectures":["DeiTForImageClassification"],"hidden_act":"gelu","dtype":"bfloat16"}',
    'hf:vit?{"id2label":{"0":"tench, a/b: c"},"_name_or_path":"google/vit","attn_implementation":"sdpa"}',
    'vramcast.datasets.workloads.networks:mlp?{"inputs":3}',
)


@pytest.mark.parametrize("text", REFUSED)
def test_rejects_targets_that_run_code_or_open_files(text: str) -> None:
    assert REFUSED[text] in refusal(text)
    with pytest.raises(UsageError):
        Workload("row", target=text, batch=("1x3x8x8",)).job(device("h200"))
    if "{" not in text and ":" in text:
        assert Workload("row", target=text, batch=("1x3x8x8",)).job(device("h200"), trust=True).target == text


@pytest.mark.parametrize("text", TAKEN)
def test_accepts_targets_that_name_a_model(text: str) -> None:
    assert refusal(text) == ""
    assert Workload("row", target=text, batch=("1x3x8x8",)).job(device("h200")).target == text


def test_own_lists_need_no_trust() -> None:
    assert [refusal(workload.target or "") for _, workload in workloads(1, 0, 400)] == [""] * 400


def test_own_networks_build_modules() -> None:
    import importlib

    for module, names in targets._OWN.items():
        assert all(callable(getattr(importlib.import_module(module), name)) for name in names)


@pytest.mark.parametrize(
    "text",
    [
        *("torchvision:../os", "torchvision:os", "torchvision:__init__", "torchvision:get_model", "torchvision:list_models"),
        *("timm:create_model", "timm:local-dir:/tmp", "timm:hf-hub:some/one", "timm:../os", "timm:models"),
        *("hf:AutoModel", "hf:__class__", 'hf:bert?{"architectures":["pipeline"]}'),
    ],
)
def test_name_is_looked_up_in_registry_only(text: str, need: Callable[[str], Any]) -> None:
    need({"hf": "transformers"}.get(text.partition(":")[0], text.partition(":")[0]))
    if "?" in text:  # names of no model are skipped
        small = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
        target = Target.parse(text)
        model = targets.build(f"hf:bert?{json.dumps({**small, **target.options})}")
        assert type(model).__name__ == "BertForMaskedLM"
    else:
        with pytest.raises(UsageError, match="has no model"):
            targets.build(text)


def test_rejects_unknown_config_dtype(need: Callable[[str], Any]) -> None:
    need("transformers")
    with pytest.raises(UsageError, match="is not a dtype of torch"):
        targets.build('hf:bert?{"dtype":"load"}')


def test_bare_word_is_a_model_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need: Any) -> None:
    need("transformers")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "bert"}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"write hf:\./mine"):
        targets.build("hf:mine")


def test_inlines_config_of_data_set(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    config = {"model_type": "bert", "hidden_size": 32, "pretrained_file": "x"}
    for name in ("set/one.json", "two.json"):
        (tmp_path / name).write_text(json.dumps(config))
    (tmp_path / "set" / "away.json").symlink_to(tmp_path / "two.json")
    (tmp_path / "set" / "broken.json").write_text("[" * 100_000)
    (tmp_path / "set" / "none.json").write_text("[]")
    found = inlined('hf:one.json?{"hidden_size": 64}', tmp_path / "set")
    assert Target.parse(found) == Target("hf", "bert", {"hidden_size": 64, "pretrained_file": "x"})
    assert OPENS in refusal(found)  # the file's values are checked like those of the row
    names = ("away.json", "../two.json", str(tmp_path / "set" / "one.json"), "broken.json", "none.json", "absent.json")
    for text in (*(f"hf:{name}" for name in names), "hf:bert", "torchvision:one.json", "one.json"):
        assert inlined(text, tmp_path / "set") == text


@pytest.mark.integration
def test_refusal_needs_no_torch() -> None:
    import subprocess

    code = "import sys; from vramcast.jobs.targets import refusal; refusal('os:system'); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stderr == ""


@pytest.mark.parametrize(("text", "package"), [("hf:llama", "transformers"), ("timm:vit_tiny_patch16_224", "timm")])
def test_model_by_name_needs_its_library(text: str, package: str) -> None:
    assert {name.partition(".")[0] for name in targets.imports(text)} == {package}


@pytest.mark.parametrize("text", [None, "", "file.py:factory", "package.module:factory"])
def test_own_code_is_not_imported_before_its_job(text: str | None) -> None:
    assert targets.imports(text) == ()


def test_bare_name_of_one_model_is_taken_with_a_note(capfd: pytest.CaptureFixture[str]) -> None:
    assert resolved("gpt2") == "hf:gpt2"
    assert resolved("Qwen2.5-0.5B") == "hf:Qwen/Qwen2.5-0.5B"
    assert "vramcast: takes gpt2 for hf:gpt2\n" in capfd.readouterr().err
    with pytest.raises(UsageError, match="several models are named resnet18: write torchvision:resnet18 or timm:resnet18"):
        resolved("resnet18")


def test_folder_with_a_configuration_is_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("ours", '{"model_type": "bert"}'), ("theirs", '{"_class_name": "UNet2DModel"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    assert resolved("ours") == resolved("./ours") == "hf:ours/config.json"
    assert resolved("theirs") == "diffusers:theirs/config.json"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("torchvision:resnet5", "torchvision has no model 'resnet5': did you mean resnet50"),
        ("timm:resnet5", "timm has no model 'resnet5': did you mean resnet50"),
        ("hf:brt", "transformers has no model type 'brt': did you mean bert"),
        ("file.py:Nett", "'file.py' has no 'Nett': write file.py:factory; did you mean Net?"),
    ],
)
def test_misspelt_name_is_refused_without_an_import(
    target: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.py").write_text("raise SystemExit\nclass Net: ...\nlate = None\n")
    with pytest.raises(UsageError) as raised:
        require_name(target)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    "target", ["timm:vit_base_patch16_224.augreg_in1k", "timm:vit_base_patch16_224_in21k", "file.py:late", "x:y"]
)
def test_name_that_may_exist_is_left_to_its_library(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.py").write_text("late = None\n")
    require_name(target)
