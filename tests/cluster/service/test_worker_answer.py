"""Validation of a worker's answer from any author."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pydantic")
from tests.cluster.service.doubles import estimate  # after the line above
from vramcast.cluster.service.worker_answer import read_answer
from vramcast.core.errors import WorkerError


def line(change: Callable[[dict[str, Any]], object]) -> bytes:
    answer = json.loads(json.dumps(estimate()))
    change(answer)
    return json.dumps(answer).encode()


def test_reads_answers_and_errors() -> None:
    assert read_answer(json.dumps(estimate()).encode())["estimate"]["verdict"]["exit_code"] == 0
    error = {"error": {"kind": "cannot_estimate", "message": "it raised"}, "traceback": "x"}
    assert read_answer(json.dumps(error).encode()) == error


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"{}",
        b"[]",
        b"null",
        b"1",
        b"[" * 100_000,
        b"\xff",
        b'{"error": {}}',
        b'{"error": {"kind": "x", "message": ""}}',
    ],
)
def test_rejects_invalid_answers(text: bytes) -> None:
    with pytest.raises(WorkerError, match="an invalid answer"):
        read_answer(text)


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: answer.update(more=1),
        lambda answer: answer.update(error={"kind": "usage", "message": ""}),
        lambda answer: answer.pop("levels"),
        lambda answer: answer.update(levels={}),
        lambda answer: answer["levels"].update({"0.99": -1}),
        lambda answer: answer["levels"].update({"0.99": 1 << 60}),
        lambda answer: answer["levels"].update({"0.99": 1.5}),
        lambda answer: answer["levels"].update({"0.99": True}),
        lambda answer: answer["levels"].update({"0.9999": 1}),
        lambda answer: answer["levels"].update({"1.5": 1 << 50}),
        lambda answer: answer.update(levels={f"0.{number:09}": 1 for number in range(1, 200)}),
        lambda answer: answer["estimate"]["verdict"].update(exit_code=3),
        lambda answer: answer["estimate"]["verdict"].update(exit_code="0"),
        lambda answer: answer["estimate"].pop("peaks"),
        lambda answer: answer["estimate"].update(html="<script>"),
        lambda answer: answer["estimate"].update(traits={"operators": {"x": 1}}),
        lambda answer: answer["estimate"].update(memory_bytes="40"),
        lambda answer: answer["estimate"].update(memory_bytes=1 << 60),
        lambda answer: answer["estimate"]["peaks"].update(process=float("nan")),
        lambda answer: answer["estimate"].update(context_bytes=float("inf")),
    ],
)
def test_rejects_forged_answers(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(WorkerError, match="an invalid answer"):
        read_answer(line(change))


def test_error_repeats_no_text_of_answer() -> None:
    with pytest.raises(WorkerError) as error:
        read_answer(line(lambda answer: answer["estimate"].update(memory_bytes="s3cret")))
    assert "s3cret" not in str(error.value)


PLANNED: dict[str, Any] = {
    "steps": [
        {"command": ["python"], "environment": {}, "folder": ".", "world_size": None, "nproc_per_node": None, "copies": 1}
    ],
    "plan": {"in_turn": [0, {"together": [0, 0]}]},
    "is_doubtful": False,
    "steps_ask_for_cards": False,
}


def test_reads_plan_of_script() -> None:
    assert read_answer(json.dumps(PLANNED).encode()) == PLANNED


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": {"in_turn": [1]}},
        {"plan": {"in_turn": [-1]}},
        {"plan": {"odd": [0]}},
        {"plan": {}},
        {"plan": {"in_turn": 0}},
        {"plan": 0},
        {"plan": {"together": [[0]]}},
        {"steps": []},
        {"steps": [{**PLANNED["steps"][0], "copies": 0}]},
        {"odd": 1},
    ],
)
def test_rejects_invalid_plans(changes: dict[str, Any]) -> None:
    with pytest.raises(WorkerError):
        read_answer(json.dumps({**PLANNED, **changes}).encode())
