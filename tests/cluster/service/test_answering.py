"""Answers of a worker, on the null GPU or without it."""

from __future__ import annotations

import base64
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic")
from vramcast.cli.main import main  # after the line above
from vramcast.cluster.service import worker_main
from vramcast.cluster.service.page_form import read
from vramcast.cluster.service.requests import read_question
from vramcast.cluster.service.worker_main import answer, serve
from vramcast.core.errors import JobError, WorkerError

pytestmark = pytest.mark.integration


def values(**asked: Any) -> dict[str, Any]:
    return read_question(json.dumps(asked).encode()).values


@pytest.fixture(autouse=True)
def _with_the_null_gpu(needs_null_gpu: None) -> None:
    """Skip without a null GPU."""


def resnet(**changes: Any) -> dict[str, Any]:
    return values(target="torchvision:resnet18", batch=["2x3x64x64"], labels="2:int64<1000", device="t4", **changes)


def test_model_answer_equals_command_line() -> None:
    pytest.importorskip("torchvision")
    found = answer(resnet(optimizer="sgdm"))
    assert (found["estimate"]["verdict"]["value"], found["estimate"]["verdict"]["exit_code"]) == ("fits", 0)
    assert (found["estimate"]["device"], found["estimate"]["optimizer"]) == ("t4", "sgdm")
    assert found["levels"]["0.99"] == found["estimate"]["upper_bound"]["bytes"]
    assert list(found["levels"].values()) == sorted(found["levels"].values())


def test_page_shows_what_command_and_python_print(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchvision")
    asked = read({"target": "torchvision:resnet18", "device": "t4", "batch_size": "2", "image_size": "64", "optimizer": "sgdm"})
    words = answer(values(**asked.job))["words"]
    assert main(shlex.split(asked.command())[1:]) == 0
    by_command = capsys.readouterr().out
    exec(asked.python)
    assert capsys.readouterr().out == by_command
    printed = " ".join(by_command.split())
    assert printed.startswith(words["headline"].replace("Fits", "fits"))
    said = {name: text.replace(" more below", " more: --details") for name, text in words["lines"].items()}
    assert all(f"{name} {text}" in printed for name, text in said.items())


def test_model_does_not_fit_small_card() -> None:
    pytest.importorskip("torchvision")
    found = answer(resnet(capacity_bytes=300 << 20))
    assert (found["estimate"]["verdict"]["value"], found["estimate"]["verdict"]["exit_code"]) == ("does not fit", 1)


def test_trace_has_recorded_peaks(trace: Any, tmp_path: Path) -> None:
    result = trace(target="torchvision:resnet18", batch="2x3x64x64", labels="2:int64<1000")
    path = tmp_path / "trace.npz"
    result.trace.save(path)
    text = base64.b64encode(path.read_bytes()).decode()
    found = answer(values(trace=text, device="t4"))
    assert found["estimate"]["peaks"]["allocated"] == result.trace.header["peaks"]["allocated"]


@pytest.mark.parametrize(
    "text", ["not base64!", base64.b64encode(b"PK nonsense").decode(), base64.b64encode(b"nonsense").decode()]
)
def test_invalid_trace_gives_an_error(text: str) -> None:
    assert answer(values(trace=text))["error"]["kind"] in ("usage", "cannot_estimate")


def test_wrong_job_does_not_end_worker() -> None:
    wrong = values(target="torchvision:resnet18", batch=["2x5x64x64"])
    questions = io.StringIO("".join(json.dumps(one) + "\n" for one in (wrong, wrong)))
    answers = io.StringIO()
    serve(questions, answers, None, 60.0)
    lines = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert [line["error"]["kind"] for line in lines] == ["cannot_estimate", "cannot_estimate"]


def test_sandboxed_process_is_protected() -> None:
    code = """
import ctypes, os, pickle
from vramcast.cluster.service.worker_main import stand_alone
from vramcast.tracer.protocol import messages
class Runs:
    def __reduce__(self): return os.system, ("true",)
stand_alone()
try: messages.loads(pickle.dumps(Runs()))
except messages.Unreadable: print(ctypes.CDLL(None).prctl(3), "refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "refused"]


@pytest.mark.parametrize(
    ("error", "kind"), [(MemoryError(), "worker"), (WorkerError("x"), "worker"), (JobError("x"), "cannot_estimate")]
)
def test_distinguishes_machine_from_job_errors(monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str) -> None:
    def raises(*_: Any) -> None:
        raise error

    monkeypatch.setattr(worker_main, "_estimate", raises)
    assert answer(resnet())["error"]["kind"] == kind
