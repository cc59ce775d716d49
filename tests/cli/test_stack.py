"""--stack of every verb that estimates, and the versions of cuDNN listed by `doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.cli.verbs import doctor
from vramcast.core.errors import DownloadError
from vramcast.hardware.stack import parse

pytestmark = pytest.mark.usefixtures("auto_tracer")
Call = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("verb", ["estimate", "check", "sweep", "plan", "run"])
def test_every_estimating_verb_takes_stack(call: Call, verb: str, tiny_models: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('nothing')\n")
    job = ["--", str(script)] if verb == "run" else [f"{tiny_models}:mlp", "--batch", "8x16"]
    code, _, err = call(verb, "--stack", "torch==9", *job)
    assert code == 2
    assert "torch==9: a CUDA build such as 2.8.0" in err


def test_stack_reaches_answer(call: Call, tiny_models: Path) -> None:
    options = ["--batch", "8x16", "--device", "a100-40gb", "--json", "--stack", "torch==2.8.0"]
    for verb in (["estimate"], ["check"], ["sweep", "--batch-sizes", "8"]):
        code, out, _ = call(verb[0], f"{tiny_models}:mlp", *verb[1:], *options)
        said = json.loads(out)
        assert code == 0
        assert said.get("rows", [said])[0]["stack"] == parse("torch==2.8.0").to_dict()


def test_script_takes_stack(call: Call, tmp_path: Path, needs_null_gpu: None) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4).cuda()\nadam = torch.optim.Adam(model.parameters())\n"
        "for _ in range(9): model(torch.ones(2, 4, device='cuda')).sum().backward(); adam.step()\n"
    )
    code, out, _ = call("run", "--json", "--device", "a100-40gb", "--stack", "cuda==11", "--", str(script))
    assert code == 0
    assert json.loads(out)["stack"]["cuda"] == "11"


def test_doctor_lists_installed_cudnns(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "nvidia" / "cudnn" / "lib"
    folder.mkdir(parents=True)
    installed = doctor.cudnn_libraries.CudnnLibrary(folder, "9.1.0.70", "here")
    monkeypatch.setattr(doctor.cudnn_libraries, "found", lambda: [installed])
    said = json.loads(call("doctor", "--json")[1])["cudnn"]
    assert said == [{"version": "9.1.0.70", "folder": str(folder), "place": "here", "can_answer": False}]
    assert "cuDNN: 9.1.0.70 here (too old to be asked)" in call("doctor")[1]
    monkeypatch.setattr(doctor.cudnn_libraries, "found", list)
    assert "cuDNN: none: vramcast doctor --get-cudnn 9.10.2 fetches one" in call("doctor")[1]


def test_doctor_fetches_cudnn_and_prints_folder(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = []

    def fetch(version: str) -> Path:
        wanted.append(version)
        return tmp_path

    monkeypatch.setattr(doctor, "fetch", fetch)
    assert call("doctor", "--get-cudnn", "9.10.2")[:2] == (0, f"cuDNN is in {tmp_path}\n")
    assert json.loads(call("doctor", "--get-cudnn", "9.11.0", "--json")[1]) == {"schema": 1, "folder": str(tmp_path)}
    assert wanted == ["9.10.2", "9.11.0"]


def test_failed_cudnn_download_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = call("doctor", "--get-cudnn", "9.1.0")
    assert (code, out) == (2, "")
    assert "get that (--get-cudnn 9.12.0)" in err

    def fetch(version: str) -> Path:
        raise DownloadError("no network")

    monkeypatch.setattr(doctor, "fetch", fetch)
    assert call("doctor", "--get-cudnn", "9.8.0") == (3, "", "vramcast: no network\n")
