"""A job's table in pyproject.toml is equivalent to the command line: the same names, values and errors."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from vramcast.cli import checked_job, job_table
from vramcast.cli.checked_job import CheckedJob
from vramcast.cli.main import parser
from vramcast.core.errors import UsageError

# Tables, and the equivalent command lines.
SAME: list[tuple[dict[str, Any], list[str]]] = [
    ({"target": "a:b"}, ["a:b"]),
    ({"target": "a:b", "batch": "8x16", "labels": "8:int64<4"}, ["a:b", "--batch", "8x16", "--labels", "8:int64<4"]),
    ({"target": "a:b", "batch": ["8x16", "mask=8:int64=1"]}, ["a:b", "--batch", "8x16", "--batch", "mask=8:int64=1"]),
    ({"target": "a:b", "on": "t4", "level": 0.9, "steps": 5}, ["a:b", "--on", "t4", "--level", "0.9", "--steps", "5"]),
    ({"target": "a:b", "device": "t4", "memory": "12GiB"}, ["a:b", "--device", "t4", "--memory", "12GiB"]),
    ({"target": "a:b", "checkpointing": True, "channels-last": False}, ["a:b", "--checkpointing"]),
    ({"target": "a:b", "overlap-inputs": False, "strict": True}, ["a:b", "--no-overlap-inputs", "--strict"]),
    ({"target": "a:b", "overlap-inputs": True, "bracket": False}, ["a:b", "--overlap-inputs", "--no-bracket"]),
    ({"target": "a:b", "alloc-conf": ""}, ["a:b", "--alloc-conf", ""]),
    ({"target": "a:b", "precision": "amp-bf16", "optimizer": "adamw:fused=true"},
     ["a:b", "--precision", "amp-bf16", "--optimizer", "adamw:fused=true"]),
    ({"target": "a:b", "parallel": "fsdp", "world-size": 8}, ["a:b", "--parallel", "fsdp", "--world-size", "8"]),
    ({"target": "a:b", "num-classes": 10, "lr": 1e-4}, ["a:b", "--num-classes", "10", "--lr", "1e-4"]),
    ({"target": "a:b", "timeout": 60, "artifact": "models/default", "tracer": "fake", "until": "end", "budget-s": 5},
     ["a:b", "--timeout", "60", "--artifact", "models/default", "--tracer", "fake", "--until", "end", "--budget-s", "5"]),
    ({"target": "a:b", "batch": 32, "labels": 32, "ranks": 0}, ["a:b", "--batch", "32", "--labels", "32", "--ranks", "0"]),
    ({"target": "a:b", "host-memory": "64GiB"}, ["a:b", "--host-memory", "64GiB"]),
    ({"target": "-a:b"}, ["--", "-a:b"]),
]  # fmt: skip


@pytest.mark.parametrize(("table", "words"), SAME)
def test_table_equals_command_line(table: dict[str, Any], words: list[str]) -> None:
    meant = vars(parser(["check"]).parse_args(["check", "--memory", "1GiB", *words]))
    assert job_table.read("job", {"memory": "1GiB", **table}) == CheckedJob.of(meant)


def test_rejects_check_without_card() -> None:
    with pytest.raises(UsageError, match=r"Job 'job'.*No card is given: name one with --on"):
        job_table.read("job", {"target": "a:b"})


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("torchrun --nproc_per_node=2 train.py --name 'a b'", ["torchrun", "--nproc_per_node=2", "train.py", "--name", "a b"]),
        (["train.py", "--epochs", 1, ""], ["train.py", "--epochs", "1", ""]),
    ],
)
def test_splits_command_like_a_shell(command: object, words: list[str]) -> None:
    said = job_table.read("job", {"command": command, "until": "steps", "on": "t4"}).text
    assert (said.command, said.target, said.until) == (tuple(words), None, "steps")


def test_every_job_option_is_a_key() -> None:
    of_job = argparse.ArgumentParser(add_help=False)
    checked_job.add_arguments(of_job)
    options = {one.removeprefix("--") for one in of_job._option_string_actions if not one.startswith("--no-")}
    assert job_table._TYPES.keys() == options - {"json"} | {"target", "command"}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "needs exactly one of target and command"),
        ({"target": "a:b", "command": "train.py"}, "remove the other"),
        ({"target": "a:b", "optimiser": "sgd"}, "did you mean optimizer"),
        ({"target": "a:b", "colour": "red"}, "must be an option of vramcast check"),
        ({"target": "a:b", "json": True}, "must be an option"),
        ({"target": "a:b", "world_size": 8}, "did you mean world-size"),
        ({"target": "a:b", "precision": "fp8"}, "precision is 'fp8': one of .*bf16"),
        ({"target": "a:b", "tracer": "mine"}, "tracer is 'mine': one of .*nullgpu"),
        ({"target": "a:b", "until": "noon"}, "until is 'noon': one of .*evaluation"),
        ({"target": "a:b", "steps": "many"}, "steps is 'many': a whole number"),
        ({"target": "a:b", "steps": 0}, "steps is 0: at least 1"),
        ({"target": "a:b", "level": "0.9"}, "level is '0.9': a finite number"),
        ({"target": "a:b", "level": 2}, "level is 2.0: it must be between 0 and 1"),
        ({"target": "a:b", "device": "h900"}, "h900"),
        ({"target": "a:b", "batch": []}, "batch is empty"),
        ({"target": "a:b", "batch": ["8x16", ""]}, "batch is empty"),
        ({"target": "a:b", "memory": [1]}, r"memory is \[1\]"),
        ({"target": "a:b", "strict": "yes"}, "strict is 'yes': true or false is expected"),
        ({"target": "a:b", "level": [0.9]}, r"level is \[0.9\]: a finite number"),
        ({"target": "a:b", "level": float("nan")}, "level is nan"),
        ({"target": "a:b", "device": True}, "device is True"),
        ({"target": "a:b", "device": ""}, "device is empty"),
        ({"target": "a:b", "stack": "torch=2"}, "--stack"),
        ({"target": ""}, "target is empty"),
        ({"target": 5.5j}, "target is .* text"),
        ({"command": ""}, "command is empty"),
        ({"command": []}, "command is empty"),
        ({"command": "'"}, "No closing quotation"),
        ({"command": [{}]}, r"command\[0\] is \{\}"),
    ],
)
def test_wrong_table_error_names_job(table: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"(?s)Job 'the job'.*{said}"):
        job_table.read("the job", table)


def test_distinguishes_job_options() -> None:
    of_check = parser(["check"])
    assert job_table.described(of_check.parse_args(["check", "--json", "--markdown", "-"])) == []
    given = of_check.parse_args(["check", "--on", "t4", "--steps", "5", "--strict", "--batch", "8x16"])
    assert set(job_table.described(given)) == {"--batch", "--on", "--steps", "--strict"}
