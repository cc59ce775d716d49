"""What a client may ask: which bodies are questions, and which are refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.jobs.job import Training

pytest.importorskip("pydantic")
from vramcast.service.requests import JobRequest, read_observation, read_question  # after the line above

JOB: dict[str, Any] = {"target": "torchvision:resnet18", "batch": ["8x3x224x224"], "labels": "8:int64<1000", "device": "a100"}
ID = "a" * 64


def body(**changes: Any) -> bytes:
    return json.dumps({**JOB, **changes}).encode()


def test_a_job_by_name_has_the_options_of_the_command_line() -> None:
    question = read_question(body(precision="amp-bf16", optimizer="adamw:fused=true", checkpointing=True, wait_s=1.5))
    assert (question.kind, question.wait_s) == ("target", 1.5)
    assert question.values["device"] == "a100-40gb"
    assert {"precision", "optimizer", "checkpointing"} <= question.values.keys()
    assert "wait_s" not in question.values


def test_every_option_of_a_training_may_be_asked_for() -> None:
    assert {name for name in Training.__dataclass_fields__ if name != "lr"} <= JobRequest.model_fields.keys()


def test_equal_jobs_have_one_id_and_others_another() -> None:
    one = read_question(body())
    assert one.key("v1") == read_question(body(wait_s=1.0, device="A100-40GB")).key("v1")
    assert one.key("v1") != read_question(body(optimizer="sgd")).key("v1")
    assert one.key("v1") != one.key("v2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is invalid"),
        (b"[]", "is invalid"),
        (b"[" * 200_000, "is invalid"),
        (b'{"target": 5}', "target"),
        (b'{"targets": "x"}', "targets"),
        (b"{}", "no job"),
        (body(trace="AAAA"), "target and trace"),
        (body(files={"a.py": ""}), "only a command can have"),
        (body(environment={"A": "1"}), "only a command can have"),
        (body(device="/etc/card.toml"), "opens no file"),
        (body(device="h900"), "not known"),
        (body(batch=["8xx3"]), "8xx3"),
        (body(precision="fp7"), "precision"),
        (body(steps=10_000), "steps"),
        (body(level=1.0), "level"),
        (body(wait_s=10_000.0), "wait_s"),
        (body(capacity_bytes=-1), "capacity_bytes"),
        (body(world_size=0), "world_size"),
        (body(parallel="ddp", world_size=8, nproc_per_node=0), "nproc_per_node"),
        (b'{"command": ["t.py"], "alloc_conf": "expandable_segments:True"}', "command and alloc_conf"),
        (b'{"command": ["t.py"], "batch": ["8x3"], "precision": "bf16"}', "command and batch, precision"),
        (b'{"trace": "AAAA", "optimizer": "sgd"}', "trace and optimizer"),
        (b'{"command": ["t.py"], "environment": {"VRAMCAST_ARTIFACT": "mine"}}', "VRAMCAST_ARTIFACT"),
        (b'{"command": ["t.py"], "environment": {"A=B": ""}}', "A=B"),
    ],
)
def test_what_is_wrong_is_said(text: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_question(text)


@pytest.mark.parametrize(
    "target",
    [
        "os:system",
        'os:system?{"command": "true"}',
        "/etc/passwd:x",
        "train.py:model",
        "../train.py:model",
        "hf:../../etc/passwd",
        "hf:/etc/config.json",
        "timm:hf-hub:somebody/model",
        "timm:local-dir:/etc",
        "torchvision:../../x",
        'torchvision:resnet18?{"weights": "DEFAULT"}',
        'timm:resnet18?{"pretrained": true}',
        'timm:resnet18?{"checkpoint_path": "/etc/passwd"}',
        'hf:gpt2?{"auto_map": {"AutoModel": "x--y.Z"}}',
        "torchvision:resnet18?" + "[" * 9_000,
    ],
)
def test_a_name_which_would_run_or_open_something_is_code(target: str) -> None:
    assert read_question(body(target=target)).is_code


def test_a_model_s_name_a_trace_and_a_run_are_no_code() -> None:
    for text in (body(), b'{"trace": "AAAA"}', run("torchvision:resnet18")):
        assert not read_question(text).is_code
    assert read_question(b'{"command": ["train.py"], "files": {"train.py": "", "a/b.py": ""}}').is_code


@pytest.mark.parametrize("name", ["/etc/cron.d/x", "../x", "a/../../x", "", "a\0b"])
def test_a_file_lies_within_the_job_s_folder(name: str) -> None:
    with pytest.raises(UsageError, match="within the job's folder"):
        read_question(json.dumps({"command": ["train.py"], "files": {name: ""}}).encode())


def run(target: str) -> bytes:
    """Return a request with a measured run."""
    workload = {"name": "x", "target": target, "batch": ["8x3x224x224"], "labels": "8:int64<1000"}
    passport = {"measured_by": "vramcast measure", "gpu": "NVIDIA A100-SXM4-40GB"}
    measured = {"status": "ok", "reserved_bytes": 5 << 30}
    return json.dumps(
        {"run": {"schema": 1, "id": "1", "workload": workload, "passport": passport, "measurement": measured}}
    ).encode()


def test_a_measured_run_is_a_job_and_one_which_names_code_is_none() -> None:
    assert read_question(run("torchvision:resnet18")).kind == "run"
    with pytest.raises(UsageError, match="code"):
        read_question(run("os:system"))
    with pytest.raises(UsageError, match="leave out the latter"):
        read_question(json.dumps({**json.loads(run("torchvision:resnet18")), "device": "t4"}).encode())
    with pytest.raises(UsageError, match="incomplete"):
        read_question(b'{"run": {"schema": 1, "id": "1"}}')


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.booleans() | st.text(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_no_body_brings_down_the_reader(text: bytes) -> None:
    with pytest.raises(UsageError):
        read_question(text)


def test_an_observation_says_a_peak_or_that_memory_was_short() -> None:
    finished = read_observation(json.dumps({"estimate_id": ID, "outcome": "finished", "process_bytes": 5}).encode())
    assert finished.process_bytes == 5
    assert read_observation(json.dumps({"estimate_id": ID, "outcome": "out_of_memory"}).encode()).job_id is None
    for wrong in ({"estimate_id": "x", "outcome": "finished"}, {"estimate_id": ID, "outcome": "finished"}, {"outcome": "lost"}):
        with pytest.raises(UsageError):
            read_observation(json.dumps(wrong).encode())


def test_an_observation_s_card_is_a_name_and_opens_no_file(tmp_path: Path) -> None:
    (tmp_path / "priv.toml").write_text("password = 1")
    said = {"estimate_id": ID, "outcome": "out_of_memory"}
    assert read_observation(json.dumps({**said, "device": "a100"}).encode()).device == "a100"
    for card in (str(tmp_path / "priv.toml"), "/no/such.toml"):
        with pytest.raises(UsageError, match="opens no file"):
            read_observation(json.dumps({**said, "device": card}).encode())


@pytest.mark.parametrize(
    "number", ['"1_000"', '"１２３"', "１２", "1_000", "1e3", "1.0", "true", '"5"', "-5", "0", str(1 << 51)]
)
def test_a_size_is_a_plain_whole_number(number: str) -> None:
    with pytest.raises(UsageError):
        read_observation(f'{{"estimate_id": "{ID}", "outcome": "finished", "process_bytes": {number}}}'.encode())
