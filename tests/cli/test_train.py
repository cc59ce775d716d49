from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import main as cli
from vramcast.datasets.journal import Journal
from vramcast.datasets.run import DRY_RUN, Measurement, Passport, Run, Workload

MIB = 1 << 20


def main(arguments: list[str]) -> int:
    """Run a verb on rows whose network is the code of this test."""
    return cli.main([*arguments, "--trust-targets"])


@pytest.fixture(autouse=True)
def needs_the_learner() -> None:
    pytest.importorskip("xgboost")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a network's target. All tests share it, so that each of its sizes is traced once."""
    path = tmp_path_factory.mktemp("networks") / "nets.py"
    path.write_text("import torch\ndef net(width): return torch.nn.Linear(width, width)\n")
    return f"{path}:net"


@pytest.fixture
def runs(network: str) -> list[Run]:
    """Return twelve sizes of one network, each measured with 700 MiB outside its segments; one is a dry run, one capped."""
    found = []
    for number in range(12):
        width = 256 * (number + 1)
        workload = Workload(
            f"net {width}", family="mlp", target=f'{network}?{{"width": {width}}}', batch=(f"64x{width}",), steps=3
        )
        reserved = (22 + 20 * number) * MIB
        found.append(
            Run(
                f"run-{number}",
                workload,
                Passport("vramcast measure", gpu="NVIDIA H200", torch="2.11.0", driver="580"),
                Measurement("ok", allocated_bytes=reserved // 2, reserved_bytes=reserved, process_bytes=reserved + 700 * MIB),
            )
        )
    dry = dataclasses.replace(found[0], id="dry", passport=dataclasses.replace(found[0].passport, measured_by=DRY_RUN))
    capped = dataclasses.replace(found[0], id="cap", workload=dataclasses.replace(found[0].workload, cap_bytes=1))
    return [*found, dry, capped]


def written(runs: list[Run], path: Path) -> str:
    with Journal(path) as lines:
        lines.append_all(run.to_dict() for run in runs)
    return str(path)


def test_training_is_reproducible(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], auto_tracer: str
) -> None:
    source = written(runs, tmp_path / "runs.jsonl")
    for folder in ("a", "b"):
        assert main(["train", source, "--out", str(tmp_path / folder / "mine"), "--folds", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["runs"], said["groups"]) == (12, 12)
    assert said["left_out"] == {"a dry run is no measurement": 1, "the allocator was capped": 1}
    values = json.loads((tmp_path / "a" / "mine" / "artifact.json").read_text())
    assert values["contexts"]["NVIDIA H200, 580, 2.11.0"]["size_bytes"] == 700 * MIB
    card = (tmp_path / "a" / "mine" / "CARD.md").read_text()
    assert "| reserved | " in card.partition("## Classes")[2].partition("## Context")[0]
    assert "12 runs of 12 models" in card
    for path in (tmp_path / "a" / "mine").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "mine" / path.name).read_bytes()


def test_compares_older_artifact_with_new_runs(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], auto_tracer: str
) -> None:
    """After a driver update the same jobs take 300 MiB more outside their segments."""
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    assert main(["train", written(runs, tmp_path / "runs.jsonl"), "--out", old, "--folds", "3"]) == 0
    later = [
        dataclasses.replace(
            run,
            id=f"{run.id} later",
            measurement=dataclasses.replace(run.measurement, process_bytes=(run.measurement.process_bytes or 0) + 300 * MIB),
        )
        for run in runs
    ]
    source = written(later, tmp_path / "later.jsonl")
    capsys.readouterr()
    assert main(["train", source, "--out", new, "--folds", "3", "--against", old]) == 0
    said = capsys.readouterr().out
    assert "covered 0.0 % at 0.9, 0.0 % at 0.95, 0.0 % at 0.99" in said
    assert "context of NVIDIA H200, 580, 2.11.0: 700 MiB, now 1000 MiB" in said
    assert main(["train", source, "--out", new, "--folds", "3", "--against", str(tmp_path)]) == 2


def test_rejects_runs_without_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run("sacct-1", Workload("job 1"), Passport("sacct", gpu="a100"), Measurement("ok", process_bytes=9 * MIB))
    assert main(["train", written([run], tmp_path / "runs.jsonl"), "--out", str(tmp_path / "mine")]) == 2
    assert "1 no job to estimate" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


def test_missing_packages_error_names_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("vramcast.learner")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "xgboost", None)
    assert main(["train", "runs.jsonl", "--out", str(tmp_path / "mine")]) == 2
    assert "pip install '.[learn]'" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--folds", "1"], ["--trials", "-1"], ["--jobs", "0"]])
def test_rejects_wrong_numbers(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "runs.jsonl", "--out", str(tmp_path / "mine"), *options]) == 2
    assert f"vramcast: {options[0]}: it is {options[1]}: at least " in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ evaluate
def test_evaluates_by_cross_validation_or_artifact(
    runs: list[Run],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    auto_tracer: str,
    require_schema: Callable[[str, str], None],
) -> None:
    source = written(runs, tmp_path / "runs.jsonl")
    assert main(["evaluate", source, "--report", str(tmp_path / "report.html"), "--level", "0.9", "--json"]) == 0
    said = capsys.readouterr()
    require_schema("evaluate", said.out)
    figures = json.loads(said.out)
    assert set(figures) == {
        *("runs", "mre", "p90", "max", "signed_median", "under_rate", "pef", "mcp_bytes", "coverage", "overprovision"),
        *("pinball", "by"),
    }
    assert figures["runs"] == 12
    assert set(figures["coverage"]) == {"0.5", "0.9", "0.95", "0.99"}
    assert "left out 1: a dry run is no measurement" in said.err
    assert "failures decided by" in said.err
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert main(["train", source, "--out", str(tmp_path / "mine"), "--folds", "3"]) == 0
    capsys.readouterr()
    assert main(["evaluate", source, "--artifact", str(tmp_path / "mine")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("runs             12\nmedian error")
    assert "bound at 0.99" in text
    assert main(["evaluate", source, "--level", "2"]) == 2


def test_cross_validation_needs_several_models(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], auto_tracer: str
) -> None:
    assert main(["evaluate", written(runs[:1], tmp_path / "runs.jsonl")]) == 2
    assert "1 models are too few" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ calibrate
def test_calibrates_on_new_runs_and_reports_changes(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], auto_tracer: str
) -> None:
    old = written(runs[:6], tmp_path / "old.jsonl")
    more = [
        dataclasses.replace(
            run,
            measurement=dataclasses.replace(run.measurement, process_bytes=(run.measurement.reserved_bytes or 0) + 900 * MIB),
        )
        for run in runs[6:12]
    ]
    new = written(more, tmp_path / "new.jsonl")
    assert main(["train", old, "--out", str(tmp_path / "old"), "--folds", "2"]) == 0
    capsys.readouterr()
    arguments = ["calibrate", new, "--artifact", str(tmp_path / "old"), "--out", str(tmp_path / "new")]
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["drift"]["all"]["runs"] == 6
    assert said["contexts"] == {"NVIDIA H200, 580, 2.11.0": [700 * MIB, 900 * MIB]}
    assert json.loads((tmp_path / "new" / "artifact.json").read_text())["card"]["calibrated_on"]["runs"] == 6
    assert main(arguments) == 0
    assert "700 MiB, now 900 MiB" in capsys.readouterr().out


def test_training_ignores_artifact_in_use(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auto_tracer: str
) -> None:
    monkeypatch.setenv("VRAMCAST_ARTIFACT", str(tmp_path / "absent"))
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))  # no cache from another test
    assert main(["train", written(runs[:4], tmp_path / "runs.jsonl"), "--out", str(tmp_path / "mine"), "--folds", "2"]) == 0


# ------------------------------------------------------------------------------------------------ trust
@pytest.mark.parametrize("verb", ["train", "calibrate", "evaluate"])
def test_runs_code_of_rows_only_if_trusted(
    runs: list[Run], tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str], auto_tracer: str
) -> None:
    planted = tmp_path / "planted"
    evil = "os:system?" + json.dumps({"command": f"touch {planted}"})
    row = dataclasses.replace(runs[0], workload=dataclasses.replace(runs[0].workload, target=evil, batch=("1x3x8x8",)))
    source = written([row], tmp_path / "evil.jsonl")
    options = {"train": ["--out", str(tmp_path / "out")], "calibrate": ["--out", str(tmp_path / "out")], "evaluate": []}[verb]
    if verb == "calibrate":
        options += ["--artifact", "default"]
    assert cli.main([verb, source, *options]) == 2
    assert not planted.exists()
    said = capsys.readouterr().err
    assert verb == "calibrate" or "1 its target is code: pass --trust-targets" in said.replace("1: ", "1 ")
    assert cli.main([verb, source, *options, "--trust-targets"]) == 2  # it returns no module
    assert planted.exists()


def test_reads_config_only_from_set_folder(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], need: Callable[[str], Any], auto_tracer: str
) -> None:
    need("transformers")
    (tmp_path / "set" / "configs").mkdir(parents=True)
    config = '{"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "vocab_size": 99}'
    for place in ("set/configs/inside.json", "outside.json"):
        (tmp_path / place).write_text(config)
    (tmp_path / "set" / "link.json").symlink_to(tmp_path / "outside.json")
    names = ["configs/inside.json", "link.json", "../outside.json", "configs/../../outside.json", f"{tmp_path}/outside.json"]
    rows = [
        dataclasses.replace(
            runs[number],
            workload=dataclasses.replace(runs[number].workload, target=f"hf:{name}", batch=("input_ids=2x8:int64<99",)),
        )
        for number, name in enumerate(names)
    ]
    source = written(rows, tmp_path / "set" / "runs.jsonl")
    assert cli.main(["evaluate", source, "--artifact", "default"]) == 0
    said = capsys.readouterr()
    assert "runs             1\n" in said.out
    assert "left out 4: its config is not in the data set's folder: pass --trust-targets" in said.err
