"""Requests of clients: the valid bodies, and the reasons to reject others."""

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
from vramcast.cluster.service.requests import JobRequest, read_observation, read_question  # after the line above

JOB: dict[str, Any] = {"target": "torchvision:resnet18", "batch": ["8x3x224x224"], "labels": "8:int64<1000", "device": "a100"}
ID = "a" * 64


def body(**changes: Any) -> bytes:
    return json.dumps({**JOB, **changes}).encode()


def test_named_job_has_command_line_options() -> None:
    question = read_question(body(precision="amp-bf16", optimizer="adamw:fused=true", checkpointing=True, wait_s=1.5))
    assert (question.kind, question.wait_s) == ("target", 1.5)
    assert question.values["device"] == "a100-40gb"
    assert {"precision", "optimizer", "checkpointing"} <= question.values.keys()
    assert "wait_s" not in question.values


def test_accepts_every_training_option() -> None:
    assert {name for name in Training.__dataclass_fields__ if name != "lr"} <= JobRequest.model_fields.keys()


def test_equal_jobs_share_an_id() -> None:
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
        (body(capacity_bytes=2**53 + 1), "9007199254740993 is too large"),
        (body(capacity_bytes=2**62), "too large"),
        (body(num_classes=2**60), "too large"),
        (body(run={"workload": [2**60]}, target=None), "too large"),
        (body(world_size=0), "world_size"),
        (body(parallel="ddp", world_size=8, nproc_per_node=0), "nproc_per_node"),
        (b'{"command": ["t.py"], "alloc_conf": "expandable_segments:True"}', "command and alloc_conf"),
        (b'{"command": ["t.py"], "batch": ["8x3"], "precision": "bf16"}', "command and batch, precision"),
        (b'{"trace": "AAAA", "optimizer": "sgd"}', "trace and optimizer"),
        (b'{"command": ["t.py"], "environment": {"VRAMCAST_ARTIFACT": "mine"}}', "VRAMCAST_ARTIFACT"),
        (b'{"command": ["t.py"], "environment": {"A=B": ""}}', "A=B"),
    ],
)
def test_rejects_wrong_requests(text: bytes, said: str) -> None:
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
def test_names_of_files_and_factories_are_code(target: str) -> None:
    assert read_question(body(target=target)).is_code


def test_optimizer_of_a_package_is_code() -> None:
    assert read_question(body(optimizer="torch.optim:Adam")).is_code
    assert not read_question(body(optimizer="paged_adamw_8bit")).is_code


def test_models_traces_and_runs_are_not_code() -> None:
    for text in (body(), b'{"trace": "AAAA"}', run("torchvision:resnet18")):
        assert not read_question(text).is_code
    assert read_question(b'{"command": ["train.py"], "files": {"train.py": "", "a/b.py": ""}}').is_code


@pytest.mark.parametrize("name", ["/etc/cron.d/x", "../x", "a/../../x", "", "a\0b"])
def test_files_stay_within_job_folder(name: str) -> None:
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


def test_accepts_measured_run_without_code() -> None:
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
def test_reader_survives_any_body(text: bytes) -> None:
    with pytest.raises(UsageError):
        read_question(text)


def test_observation_has_peak_or_out_of_memory() -> None:
    finished = read_observation(json.dumps({"estimate_id": ID, "outcome": "finished", "process_bytes": 5}).encode())
    assert finished.process_bytes == 5
    assert read_observation(json.dumps({"estimate_id": ID, "outcome": "out_of_memory"}).encode()).job_id is None
    for wrong in ({"estimate_id": "x", "outcome": "finished"}, {"estimate_id": ID, "outcome": "finished"}, {"outcome": "lost"}):
        with pytest.raises(UsageError):
            read_observation(json.dumps(wrong).encode())


def test_card_of_observation_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "priv.toml").write_text("password = 1")
    said = {"estimate_id": ID, "outcome": "out_of_memory"}
    assert read_observation(json.dumps({**said, "device": "a100"}).encode()).device == "a100"
    for card in (str(tmp_path / "priv.toml"), "/no/such.toml"):
        with pytest.raises(UsageError, match="opens no file"):
            read_observation(json.dumps({**said, "device": card}).encode())


@pytest.mark.parametrize(
    "number", ['"1_000"', '"１２３"', "１２", "1_000", "1e3", "1.0", "true", '"5"', "-5", "0", str(1 << 51)]
)
def test_sizes_are_plain_whole_numbers(number: str) -> None:
    with pytest.raises(UsageError):
        read_observation(f'{{"estimate_id": "{ID}", "outcome": "finished", "process_bytes": {number}}}'.encode())
