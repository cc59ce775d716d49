"""The networks that have their bounds compared; nothing is traced here."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.accuracy import widths


def test_networks_of_ultralytics_need_its_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = widths.networks(widths._CONVOLUTIONS)
    assert "pip install ultralytics" in capsys.readouterr().out
    assert len(found) >= 24
    assert not [name for name in found if name.startswith("ultralytics:")]


def test_each_network_has_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    jobs = {name: job for kinds in (widths._CONVOLUTIONS, widths._OTHERS) for name, job in widths.networks(kinds).items()}
    assert jobs["hf:gpt2"].keywords == {"batch_size": 16, "seq": 256, "optimizer": "sgd"}
    assert jobs["timm:dla60"].args == ("timm:dla60",)
    network, (batch,) = jobs["ultralytics:yolo11n"].args
    assert network.args == ("yolo11n",)
    assert {len(batch[name]) for name in ("batch_idx", "cls", "bboxes")} == {8 * batch["img"].shape[0]}
