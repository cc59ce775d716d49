"""Experiment trackers and hubs in a traced command: no data leaves the machine, and no folder remains."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vramcast.estimates.estimator import estimate_command
from vramcast.tracer.libraries import huggingface_hub, trackers

# Packages that stand for the real ones: the functions that a script calls, and the original destination.
PACKAGES = {
    "mlflow.py": "uri = None\ndef set_tracking_uri(uri): globals()['uri'] = uri",
    "tensorboard/__init__.py": "",
    "tensorboard/summary/__init__.py": "",
    "tensorboard/summary/writer/__init__.py": "",
    "tensorboard/summary/writer/event_file_writer.py": """
import os
class EventFileWriter:
    def __init__(self, logdir, max_queue_size=10):
        os.makedirs(logdir)
        self.file = os.path.join(logdir, "events")
        open(self.file, "w").close()
""",
}
SCRIPT = """
import json, os, sys, torch
import mlflow
from tensorboard.summary.writer.event_file_writer import EventFileWriter
mlflow.set_tracking_uri("https://mlflow.example.com")
found = {name: os.environ.get(name) for name in ("WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI", "NEPTUNE_MODE")}
found |= {"uri": mlflow.uri, "events": EventFileWriter("runs", 10).file}
torch.empty(1 << 20, device="cuda")
json.dump(found, open(sys.argv[1], "w"))
"""


@pytest.mark.torch
@pytest.mark.integration
def test_redirects_trackers_to_temporary_folder(needs_null_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name, text in PACKAGES.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    (work / "script.py").write_text(SCRIPT)
    before = sorted(work.rglob("*.*"))
    monkeypatch.chdir(work)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    estimate_command(["script.py", str(tmp_path / "found")], device="t4")
    found = json.loads((tmp_path / "found").read_text())
    folder = found["WANDB_DIR"]
    assert (found["WANDB_MODE"], found["NEPTUNE_MODE"], found["uri"]) == ("offline", "debug", None)
    assert found["MLFLOW_TRACKING_URI"] == f"file://{folder}/mlruns"
    assert found["events"] == f"{folder}/events{work}/runs/events"
    assert not Path(folder).exists()
    assert [path for path in sorted(work.rglob("*.*")) if path.suffix != ".pyc"] == before


def test_keeps_disabled_tracker_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"WANDB_MODE": "disabled"})
    with trackers.kept_apart(str(tmp_path)):
        assert os.environ["WANDB_MODE"] == "disabled"
        assert os.environ["NEPTUNE_MODE"] == "debug"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a hub that is not imported yet, in a separate environment."""
    package, constants = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.constants")
    vars(constants).update(HF_HUB_OFFLINE=False, ENDPOINT="https://huggingface.co")
    vars(package)["constants"] = constants
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    monkeypatch.setattr(os, "environ", {})
    return constants


def unknown(*_: object) -> None:
    raise socket.gaierror(-2, "Name or service not known")


def test_goes_offline_without_network(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with huggingface_hub.noticed():
        assert (hub.HF_HUB_OFFLINE, os.environ["HF_HUB_OFFLINE"]) == (True, "1")


def test_stays_online_with_network_or_proxy(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    with huggingface_hub.noticed():
        assert not hub.HF_HUB_OFFLINE
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(huggingface_hub, "getproxies", lambda: {"https": "proxy"})
    with huggingface_hub.noticed():
        assert not hub.HF_HUB_OFFLINE
