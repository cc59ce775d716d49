"""The webhook as a part of the service: its routes, its limits, and its restriction to models by name."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from tests.cluster.service.doubles import Instant, client, known  # after the line above

NAMED = {"vramcast.dev/batch": "8x3x224x224", "vramcast.dev/labels": "8:int64<1000", "vramcast.dev/device": "a100"}


@pytest.fixture
def workers() -> Instant:
    return Instant()


@pytest.fixture
def http(tmp_path: Path, workers: Instant) -> Iterator[Any]:
    with client(tmp_path, workers, clients=[known()], admits=True) as found:
        yield found


def review(target: str, **annotations: str) -> dict[str, Any]:
    metadata = {"name": "x", "annotations": {"vramcast.dev/target": target, **NAMED, **annotations}}
    spec = {"schedulerName": "kai-scheduler", "containers": [{"name": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1", "object": pod}}


def test_fills_pod_without_token(http: Any, workers: Instant) -> None:
    found = http.post("/admission/fill/mutate", json=review("torchvision:resnet18"))
    assert found.status_code == 200
    patch = json.loads(base64.b64decode(found.json()["response"]["patch"]))
    assert {"op": "add", "path": "/metadata/annotations/gpu-memory", "value": "6144"} in patch
    assert http.post("/admission/enforce/validate", json=review("torchvision:resnet18")).json()["response"]["allowed"] is True
    assert workers.asked == ["resnet18"]


@pytest.mark.parametrize(
    ("target", "annotations", "why"),
    [
        ("torchvision:resnet34", {}, "it raised"),
        ("torchvision:resnet101", {}, "wait"),
        ("model.py:build", {}, "model's name"),
        ("os:system", {}, "model's name"),
        ("torchvision:resnet18", {"vramcast.dev/batch": "x"}, "batch"),
        ("torchvision:resnet18", {"vramcast.dev/color": "red"}, "color"),
        ("torchvision:resnet18", {"vramcast.dev/device": "/etc/card.toml"}, "card"),
        ("torchvision:resnet18", {"vramcast.dev/command": "sh"}, "command"),
    ],
)
def test_admits_with_warning_without_answer(target: str, annotations: dict[str, str], why: str, http: Any) -> None:
    response = http.post("/admission/fill/mutate", json=review(target, **annotations)).json()["response"]
    assert (response["allowed"], "patch" in response) == (True, False)
    assert why in response["warnings"][0]


def test_rejects_other_and_large_bodies(http: Any) -> None:
    assert http.post("/admission/fill/mutate", content=b"{").status_code == 400
    assert http.post("/admission/all/mutate", json={}).status_code == 404
    assert http.post("/admission/fill/mutate", content=b"x" * (4 << 20)).status_code == 413
    assert http.post("/v1/checks", json={}).status_code == 401


def test_has_no_webhook_without_option(tmp_path: Path, workers: Instant) -> None:
    with client(tmp_path, workers) as found:
        assert found.post("/admission/fill/mutate", json={}).status_code == 404
