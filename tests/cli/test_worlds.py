"""Models on several ranks on the command line: --parallel, --world-size, --world-sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def job(tiny_models: Path) -> list[str]:
    return [f"{tiny_models}:wide", "--batch", "64x1024", "--labels", "64x1024", "--device", "t4"]


@pytest.mark.usefixtures("tracer")
def test_sweep_has_row_per_world_size(call: Call, job: list[str]) -> None:
    code, out, _ = call("sweep", *job, "--parallel", "fsdp", "--world-sizes", "1..4", "--json")
    said = json.loads(out)
    assert (code, said["max_batch"]) == (0, None)
    assert [(row["world_size"], row["parallel"], len(row["ranks"])) for row in said["rows"]] == [
        (1, "fsdp", 0), (2, "fsdp", 1), (4, "fsdp", 1),
    ]  # fmt: skip
    allocated = [row["peaks"]["allocated"] for row in said["rows"]]
    assert allocated == sorted(allocated, reverse=True)
    code, out, _ = call("estimate", *job, "--parallel", "fsdp", "--world-size", "2", "--json")
    assert (code, json.loads(out)["peaks"]) == (0, said["rows"][1]["peaks"])
    code, out, _ = call("sweep", *job, "--parallel", "ddp", "--world-sizes", "2,4")
    assert (code, out.split()[0], [line.split()[0] for line in out.splitlines()[1:]]) == (0, "ranks", ["2", "4"])


@pytest.mark.usefixtures("tracer")
def test_checks_rank_and_finds_no_batch(call: Call, job: list[str]) -> None:
    parallel = ["--parallel", "hsdp:2x2", "--memory", "300MiB"]
    code, out, _ = call("check", *job, *parallel, "--details")
    assert (code, "batch             per rank; all 4" in out) == (1, True)
    code, out, _ = call("sweep", *job, *parallel, "--max-batch", "--json")
    said = json.loads(out)
    assert (code, said["max_batch"], said["rows"][0]["world_size"]) == (1, 0, 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["estimate", "--world-size", "8"], "but parallel (--parallel) is missing: give one of"),
        (["check", "--parallel", "fsdp"], "'fsdp' without a number of ranks: give world_size (--world-size)"),
        (["check", "--parallel", "ddp", "--world-size", "2", "--ranks", "all"], "--ranks all is for commands"),
        (["check", "--on", "t4", "--parallel", "ddp", "--", "train.py"], "--parallel: this describes a model"),
        (["sweep", "--world-sizes", "1..8"], "--parallel is missing: give ddp or fsdp"),
        (["sweep", "--parallel", "hsdp:2x2", "--world-sizes", "1..8"], "sets its own number of ranks"),
        (["sweep", "--parallel", "ddp", "--world-sizes", "8..1"], "--world-sizes: '8..1' is not a range or a list"),
        (["sweep", "--parallel", "ddp", "--world-sizes", "2", "--world-size", "2"], "give one of them"),
        (["sweep", "--parallel", "ddp", "--world-sizes", "2", "--max-batch"], "leave out --batch-sizes and --max-batch"),
    ],
)
def test_rejects_conflicting_options(call: Call, job: list[str], arguments: list[str], said: str) -> None:
    verb, *rest = arguments
    code, out, error = call(verb, *([] if "--" in rest else job), *rest)
    assert (code, out) == (2, "")
    assert said in error
