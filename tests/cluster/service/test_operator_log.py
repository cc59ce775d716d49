"""The operator's log: one line per event, tracebacks of unexpected errors, and none of them for clients."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
import vramcast.cluster.service.worker_main as worker  # after the line above
from tests.cluster.service.doubles import Instant, client
from vramcast.cluster.service.operator_log import write_log
from vramcast.cluster.service.requests import read_question
from vramcast.core.errors import CannotEstimate

JOB = {"target": "torchvision:resnet18", "batch": ["8x3x224x224"], "labels": "8:int64<1000", "device": "a100"}


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Yield a function that returns the new lines on stderr; restore the log afterwards."""
    root, own = logging.getLogger(), logging.getLogger("vramcast")
    before = root.handlers[:], root.level, own.level
    yield lambda: capsys.readouterr().err.splitlines()
    root.handlers[:], level, own_level = before
    root.setLevel(level)
    own.setLevel(own_level)


def test_library_alone_logs_nothing() -> None:
    assert any(isinstance(one, logging.NullHandler) for one in logging.getLogger("vramcast").handlers)


def test_event_is_one_line_for_any_input(log: Any) -> None:
    write_log("info")
    logging.getLogger("vramcast.cluster.service.service").info("estimate of %s", "a\n2026-11-24 ERROR b\x1b[31m\u2028é")
    (line,) = log()
    assert line.endswith("INFO vramcast.cluster.service.service: estimate of a\\n2026-11-24 ERROR b\\x1b[31m\\u2028é")


def test_traceback_is_distinct_from_events(log: Any) -> None:
    write_log("info")
    try:
        raise ValueError("x\nERROR forged")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
    event, *traceback = log()
    assert event.endswith("ERROR uvicorn.error: Exception in ASGI application")
    assert traceback[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in traceback)


@pytest.mark.parametrize(("level", "seen"), [("debug", 3), ("info", 2), ("error", 0)])
def test_level_applies_to_vramcast_only(level: str, seen: int, log: Any) -> None:
    write_log(level)
    own = logging.getLogger("vramcast.cluster.service")
    own.debug("x")
    own.info("x")
    own.warning("x")
    logging.getLogger("urllib3").info("x")
    assert len(log()) == seen


def test_logs_estimates_and_observations(log: Any, tmp_path: Path) -> None:
    write_log("info")
    with client(tmp_path, Instant()) as http:
        id_ = http.post("/v1/estimates", json=JOB).json()["id"]
        http.post("/v1/estimates", json=JOB)
        http.post("/v1/observations", json={"estimate_id": id_, "outcome": "out_of_memory"})
    made, observed = log()
    assert re.search(
        rf"INFO vramcast\.cluster\.service\S*: estimate {id_} of torchvision:resnet18 after \d+\.\d s: fits$", made
    )
    assert observed.endswith(f"of estimate {id_}: out_of_memory")


def test_logs_traceback_of_unexpected_error_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = read_question(json.dumps(JOB).encode()).values

    def raises(error: Exception) -> Any:
        def estimate(*_: Any) -> Any:
            raise error

        monkeypatch.setattr(worker, "_estimate", estimate)
        return worker.answer(values)

    found = raises(ZeroDivisionError("division by zero"))
    assert found["error"]["message"] == "ZeroDivisionError: division by zero"
    assert found["traceback"].startswith("Traceback (most recent call last):")
    assert raises(CannotEstimate("no")) == {"error": {"kind": "cannot_estimate", "message": "no"}}


def test_hides_unexpected_error_from_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Instant()

    async def ask(_: Any) -> Any:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(workers, "ask", ask)
    with client(tmp_path, workers) as http:
        http._transport.raise_server_exceptions = False  # like uvicorn: it logs errors that Starlette raises again
        found = http.post("/v1/estimates", json=JOB)
    assert (found.status_code, found.json()["error"]["kind"]) == (500, "internal")
    assert "secret" not in found.text
