"""A client generated from the OpenAPI of a running service: it requests, waits, checks and observes."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("openapi_python_client")
pytest.importorskip("torchvision")
from benchmarks.serving.running import running  # after the lines above

pytestmark = [pytest.mark.integration, pytest.mark.release]
JOB: dict[str, Any] = {
    "target": "torchvision:resnet18",
    "batch": ["2x3x64x64"],
    "labels": "2:int64<1000",
    "device": "t4",
    "precision": "amp-fp16",
}


@pytest.fixture(scope="module")
def address(needs_null_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a real service with the token `secret`."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "token").write_text("secret")
    with running(folder / "data", "--workers", "1", "--token-file", str(folder / "token")) as service:
        yield f"http://127.0.0.1:{service.port}"


@pytest.fixture(scope="module")
def generated(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the name of a package with the client, generated from the service's own description."""
    folder = tmp_path_factory.mktemp("client")
    with urllib.request.urlopen(f"{address}/openapi.json") as document:
        (folder / "openapi.json").write_bytes(document.read())
    (folder / "settings.json").write_text(json.dumps({"post_hooks": []}))
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"]
    command += ["--path", "openapi.json", "--config", "settings.json", "--output-path", "vramcast_client"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield "vramcast_client"
    sys.path.remove(str(folder))


@pytest.fixture
def ask(address: str, generated: str) -> Iterator[Any]:
    """Yield a function that calls an operation by name, and returns the answer in the client's own type."""
    with importlib.import_module(generated).AuthenticatedClient(base_url=address, token="secret") as client:

        def asked(operation: str, **values: Any) -> Any:
            return importlib.import_module(f"{generated}.api.{operation}").sync(client=client, **values)

        yield asked


def test_requests_waits_checks_and_observes(ask: Any, generated: str) -> None:
    models = importlib.import_module(f"{generated}.models")
    running = ask("estimates.estimate", body=models.JobRequest.from_dict({**JOB, "wait_s": 0.0}))
    assert isinstance(running, models.RunningResponse)
    latest_s = time.monotonic() + 120
    while isinstance(found := ask("estimates.find_estimate", id=running.id), models.RunningResponse):
        assert time.monotonic() < latest_s
        time.sleep(0.05)
    assert isinstance(found, models.EstimateAnswer)
    assert found.id == running.id
    assert (found.estimate.device, found.estimate.precision, found.estimate.verdict.value) == ("t4", "amp-fp16", "fits")

    checked = ask("estimates.check", body=models.JobRequest.from_dict(JOB))
    assert isinstance(checked, models.CheckAnswer)
    assert (checked.id, checked.verdict.value, checked.process_bytes) == (found.id, "fits", found.estimate.peaks.process)

    observation = models.ReportedResult(estimate_id=found.id, outcome="finished", process_bytes=checked.process_bytes)
    assert isinstance(ask("observations.observe", body=observation), models.ObservedResponse)


def test_errors_have_types(ask: Any, generated: str) -> None:
    models = importlib.import_module(f"{generated}.models")
    for name, values in {
        "estimates.check": {"body": models.JobRequest(target="os:system")},
        "estimates.find_estimate": {"id": "0" * 64},
    }.items():
        failure = ask(name, **values)
        assert isinstance(failure, models.Failure)
        assert failure.error.kind in ("forbidden", "not_found")
        assert failure.error.message
