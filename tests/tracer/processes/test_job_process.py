"""A portable tracer's process: forked from a warm worker on Linux, a fresh Python elsewhere; both give the same answer."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from vramcast.core.errors import TimeLimit, WorkerError
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.tracer.processes.job_process import run_once, trace_in_process
from vramcast.tracer.processes.warm_worker import WarmWorker
from vramcast.tracer.protocol.run_options import AS_USUAL

FAKE = "vramcast.tracer.fake.main"
MODELS = """
import os, signal, time
import torch

def mlp():
    print("built")
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))

def dies():
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def sleeps():
    time.sleep(60)

def named():
    assert os.environ["VRAMCAST_TEST_NAME"] == "now"
    assert "VRAMCAST_TEST_GONE" not in os.environ
    return mlp()
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "process_models.py"
    path.write_text(MODELS)
    return path


def job(models: Path, name: str) -> Job:
    batch, path = TensorSpec((8, 16)), tuple(sys.path)
    return Job(device("a100-40gb"), f"{models}:{name}", batch=batch, training=Training(steps=2), search_path=path)


def test_fresh_python_answers_like_warm_worker(models: Path) -> None:
    fresh = run_once(FAKE, job(models, "mlp"), timeout_s=120, advice=".")
    warm = trace_in_process(FAKE, job(models, "mlp"), timeout_s=120, advice=".")
    assert (fresh.status, fresh.steps) == (warm.status, warm.steps) == ("ok", 2)
    assert fresh.trace is not None
    assert warm.trace is not None
    assert fresh.trace.size_bytes.tolist() == warm.trace.size_bytes.tolist()


def test_dead_fresh_python_reports_cause(models: Path) -> None:
    with pytest.raises(WorkerError, match=r"killed by SIGKILL: it was probably out of memory\.\nlast words"):
        run_once(FAKE, job(models, "dies"), timeout_s=120, advice=".")


def test_stops_fresh_python_in_time(models: Path) -> None:
    with pytest.raises(TimeLimit, match=r"did not end within 8 s\."):
        run_once(FAKE, job(models, "sleeps"), timeout_s=8, advice=".")


@pytest.mark.skipif(sys.platform != "linux", reason="warm workers fork")
def test_job_has_callers_environment(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_TEST_GONE", "then")
    command = [sys.executable, "-m", "vramcast.tracer.processes.fork_server", FAKE]
    worker = WarmWorker(command, os.environ)
    try:
        monkeypatch.delenv("VRAMCAST_TEST_GONE")
        monkeypatch.setenv("VRAMCAST_TEST_NAME", "now")
        answer = worker.ask(job(models, "named"), os.environ, AS_USUAL, timeout_s=120, advice=".")
    finally:
        worker.close()
    assert answer.status == "ok", answer.message


@pytest.mark.skipif(sys.platform != "linux", reason="warm workers fork")
def test_worker_reports_failed_start() -> None:
    with pytest.raises(WorkerError, match="did not start"):
        WarmWorker([sys.executable, "-c", "raise SystemExit(3)"], os.environ)


@pytest.mark.skipif(sys.platform != "linux", reason="warm workers fork")
def test_job_finds_its_own_release_of_a_package_that_the_worker_preloaded(tmp_path: Path) -> None:
    models = tmp_path / "release_models.py"
    models.write_text("import yaml, torch\ndef mlp():\n    return torch.nn.Linear(16, getattr(yaml, 'WIDTH', 8))\n")
    theirs = tmp_path / "theirs" / "yaml"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("WIDTH = 2**20\n")
    installed = job(models, "mlp")
    own = replace(installed, search_path=(str(theirs.parent), *installed.search_path))
    widths = [trace_in_process(FAKE, each, timeout_s=120, advice=".") for each in (installed, installed, own, installed)]
    largest = [max(found.trace.size_bytes) for found in widths if found.trace is not None]
    assert largest[0] == largest[1] == largest[3] < 16 * 2**20 < largest[2]
