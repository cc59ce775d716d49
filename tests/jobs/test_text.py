"""A job as text: the same text gives the same job from every source."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import checked_job, job_table
from vramcast.cli import options as shared
from vramcast.cli.main import parser
from vramcast.core.brief import every_field
from vramcast.core.errors import UsageError
from vramcast.datasets.run import Workload
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec, Training
from vramcast.jobs.text import BUDGET_S, JobText

CARD = "a100-40gb"
# Jobs as flat values by the fields' names.
JOBS: list[dict[str, Any]] = [
    {"target": "torchvision:resnet18", "batch": ["8x3x64x64"]},
    {"target": "torchvision:resnet18", "batch": ["8x3x64x64"], "labels": "8:int64<10", "num_classes": 10},
    {"target": "hf:gpt2", "batch": ["input_ids=8x16:int64<9", "attention_mask=8x16:int64=1"], "optimizer": "adamw"},
    {"target": "timm:vit", "batch": ["8x3x64x64"], "precision": "amp-bf16", "mode": "infer", "steps": 5},
    {"target": "timm:vit", "batch": ["8x3x64x64"], "zero_grad": "after-step", "overlap_inputs": False, "channels_last": True},
    {"target": "timm:vit", "batch": ["8x3x64x64"], "checkpointing": True, "cudnn_benchmark": True},
    {"target": "timm:vit", "batch": ["8x16..32"], "alloc_conf": "expandable_segments:True"},
]
NO_ROW: list[dict[str, Any]] = [  # a row is for one card, and has neither its size nor its stack
    {"target": "timm:vit", "batch": ["8x3x64x64"], "parallel": "fsdp", "world_size": 16, "nproc_per_node": 4},
    {"target": "timm:vit", "batch": ["8x3x64x64"], "stack": "torch==2.8.0", "memory": 12 << 30},
]


def of_words(values: dict[str, Any]) -> Job:
    words = ["estimate", "--device", CARD, values["target"]]
    for name, value in values.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif name != "target":
            words += [f"--{option}={one}" for one in (value if isinstance(value, list) else [value])]
    return shared.job_of(parser(["estimate"]).parse_args(words))


def of_table(values: dict[str, Any]) -> Job:
    table = {name.replace("_", "-"): value for name, value in values.items()}
    checked = job_table.read("job", {**table, "on": CARD})
    return checked.text.job(checked.estimator.card)


def of_body(values: dict[str, Any]) -> Job:
    pytest.importorskip("pydantic")
    from vramcast.cluster.service.requests import job_of_question, read_question

    named = {{"memory": "capacity_bytes"}.get(name, name): value for name, value in values.items()}
    return job_of_question(read_question(json.dumps({**named, "device": CARD}).encode()).values)


def of_row(values: dict[str, Any]) -> Job:
    return Workload("a row", **{**values, "batch": tuple(values["batch"])}).job(device(CARD), trust=True)


def same(one: Job, other: Job, **differ: Any) -> bool:
    """Return whether two jobs are equal, including fields that `repr` omits."""
    return replace(one, **differ) == replace(other, **differ) and one.search_path == other.search_path


@pytest.mark.parametrize("door", [of_table, of_body, of_row])
@pytest.mark.parametrize("values", JOBS, ids=[f"job {number}" for number in range(len(JOBS))])
def test_same_text_gives_same_job(door: Callable[[dict[str, Any]], Job], values: dict[str, Any]) -> None:
    said = {"alloc_conf": "", **values}  # a body and a row without it mean torch's defaults; the others, the environment's
    # A body gives its card's size, which may be the device's own.
    assert same(door(said), of_words(said), memory_bytes=None if door is of_body else door(said).memory_bytes)


@pytest.mark.parametrize("door", [of_table, of_body])
@pytest.mark.parametrize("values", NO_ROW, ids=["ranks", "another machine"])
def test_same_ranks_and_stack_give_same_job(door: Callable[[dict[str, Any]], Job], values: dict[str, Any]) -> None:
    said = {"alloc_conf": "", **values}
    found, meant = door(said), of_words(said)
    assert same(found, meant, memory_bytes=None)
    assert found.total_bytes == meant.total_bytes == values.get("memory", device(CARD).total_bytes)


def test_command_gives_same_job_from_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic")
    from vramcast.cluster.service.requests import job_of_question, read_question

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    words = checked_job.job_text(parser(["run"]).parse_args(["run", "--device", CARD, "--steps", "5", "--", "train.py"])).job(
        device(CARD)
    )
    table = job_table.read("job", {"command": "train.py", "steps": 5, "device": CARD}).text.job(device(CARD))
    body = json.dumps({"command": ["train.py"], "steps": 5, "device": CARD})
    assert same(table, words)
    assert same(job_of_question(read_question(body.encode()).values), words)
    assert words.training == Training(steps=5)


def test_search_path_of_target_and_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = JobText(target="file.py:model", batch=("8x16",)).job(device(CARD))
    model = JobText().around(device(CARD), model=b"", batch=TensorSpec((8, 16)))
    assert (target.search_path, model.search_path) == (("", *sys.path), tuple(sys.path))
    assert (target.working_folder, model.working_folder) == (str(tmp_path), str(tmp_path))


def test_command_puts_its_own_folders_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/elsewhere"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "train.py").touch()

    def path(*words: str) -> tuple[str, ...]:
        return JobText(command=(*words, "train.py")).job(device(CARD)).search_path

    assert path() == ("/elsewhere",)
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    for unset in (None, ""):
        monkeypatch.delenv("PYTHONPATH", raising=False) if unset is None else monkeypatch.setenv("PYTHONPATH", unset)
        assert path() == ("/elsewhere",)
    monkeypatch.setenv("PYTHONPATH", "/more" + os.pathsep)
    assert path() == ("", "/elsewhere")
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/elsewhere"])
    monkeypatch.delenv("PYTHONPATH")
    assert path("PYTHONPATH=src", "python") == (str(tmp_path / "src"), "/elsewhere")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), "/more"]))
    assert path() == (str(tmp_path), "/elsewhere")


@pytest.mark.parametrize(("until", "budget_s"), [("steps", BUDGET_S), ("evaluation", BUDGET_S), ("end", None)])
def test_until_end_has_no_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Any, budget_s: float | None) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    command = JobText(command=("train.py",), until=until, ranks="0", training=Training(steps=5)).job(device(CARD)).command
    assert command is not None
    assert (command.until, command.budget_s, command.ranks) == (until, budget_s, (0,))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "a:b", "num_classes": 0}, "TARGET, --num-classes"),
        ({"batch": ("8x16",), "labels": "8"}, "--batch, --labels"),
        ({"parallel": "ddp", "training": Training(steps=9, lr=2.0, precision="bf16")}, "--parallel, --lr, --precision:"),
    ],
)
def test_command_rejects_model_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}.*but the command builds its own model"):
        JobText(command=("train.py",), **options).job(device(CARD))


def test_model_rejects_rank_numbers() -> None:
    with pytest.raises(UsageError, match="--ranks 0,7 is for commands"):
        JobText(target="a:b", batch=("8x16",), ranks="0,7").job(device(CARD))


def test_reads_flat_values_by_name() -> None:
    found = JobText.of({"target": "a:b", "batch": ["8x16"], "steps": 5, "labels": None, "device": "t4"})
    assert found == JobText(target="a:b", batch=("8x16",), training=Training(steps=5))
    with pytest.raises(UsageError, match="steps is 0"):
        JobText.of({"steps": 0})


KINDS: dict[str, dict[str, Any]] = {
    "a model": {"target": "torchvision:resnet18"},
    "a forward pass": {"target": "torchvision:resnet18", "mode": "infer"},
    "code": {"target": "x:y", "batch": ("2x3",)},
    "a command": {"command": ("python", "-c", "1")},
}
# By option, a value that differs from its default, with the options that it needs.
GIVEN: dict[str, dict[str, Any]] = {
    "batch": {"batch": ("4x3",)}, "labels": {"labels": "2x3", "batch": ("2x3",)}, "num_classes": {"num_classes": 7},
    "batch_size": {"batch_size": 3}, "seq": {"seq": 3}, "image_size": {"image_size": 32}, "lora": {"lora": "r=4"},
    "qlora": {"qlora": "r=4"}, "parallel": {"parallel": "ddp", "world_size": 2}, "world_size": {"world_size": 2},
    "nproc_per_node": {"nproc_per_node": 2, "world_size": 4}, "ranks": {"ranks": "0", "world_size": 2},
    "until": {"until": "steps"}, "budget_s": {"budget_s": 3.0}, "precise_values": {"precise_values": True},
    "memory": {"memory": "12GiB"},
    "alloc_conf": {"alloc_conf": "expandable_segments:True"}, "stack": {"stack": "torch==2.8.0"},
    "optimizer": {"optimizer": "sgd"}, "lr": {"lr": 0.5}, "precision": {"precision": "bf16"}, "steps": {"steps": 5},
    "zero_grad": {"zero_grad": "after-step"}, "overlap_inputs": {"overlap_inputs": False},
    "checkpointing": {"checkpointing": True}, "channels_last": {"channels_last": True},
    "cudnn_benchmark": {"cudnn_benchmark": True}, "mode": {"mode": "infer"},
}  # fmt: skip


def test_every_option_has_a_value_here() -> None:
    known = {one.name for kind in (Training, JobText) for one in dataclasses.fields(kind)}
    assert known - {"target", "command", "training"} == GIVEN.keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", GIVEN)
def test_an_option_changes_the_job_or_is_refused(option: str, kind: str) -> None:
    if kind == "a forward pass" and option == "mode":
        return
    plain, changed = outcome(KINDS[kind]), outcome({**KINDS[kind], **GIVEN[option]})
    assert changed != plain
    assert not changed.startswith("refused") or option in changed or "world_size" in changed


def outcome(values: dict[str, Any]) -> str:
    """Return a job with all its fields, or why it is refused, with the names of options as in Python."""
    try:
        return every_field(JobText.of(values).asked().job(device("t4")))
    except UsageError as error:
        return f"refused: {error}".replace("-", "_")
