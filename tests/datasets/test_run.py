from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.core.errors import DatasetError, UsageError
from vramcast.datasets import journal, tables
from vramcast.datasets.journal import Journal
from vramcast.datasets.run import SCHEMA, Measurement, Passport, Run, Workload
from vramcast.hardware.cards import device

RUN = Run(
    "1-7",
    Workload(
        "torchvision:resnet18",
        family="torchvision",
        target="torchvision:resnet18",
        features={"parameters": 11689512.0},
        batch=("8x3x64x64",),
        labels="8:int64<1000",
        optimizer="adamw",
        precision="amp-bf16",
        steps=4,
        channels_last=True,
    ),
    Passport("vramcast measure", how="nvml process", period_ms=5.2, gpu="NVIDIA H200", libraries={"timm": "1.0.31"}),
    Measurement("ok", 100, 200, 300, step_ms=(1.5, 2.0), workspaces=(("aten::cudnn_convolution", 512),), workers=1),
)

texts = st.text(max_size=8)
sizes = st.none() | st.integers(1, 2**50)


@st.composite
def runs(draw: Any) -> Run:
    allocated, more = draw(sizes), draw(st.integers(0, 2**40))
    status = draw(st.sampled_from(("ok", "oom", "error", "killed", "timeout", "unknown")))
    return Run(
        draw(st.text(min_size=1, max_size=8)),
        Workload(
            draw(texts),
            family=draw(st.none() | texts),
            script=draw(st.none() | st.lists(texts, max_size=3).map(tuple)),
            features=draw(st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False), max_size=3)),
            batch=draw(st.lists(texts, max_size=3).map(tuple)),
            precision=draw(st.sampled_from((None, "fp32", "amp-bf16"))),
            steps=draw(st.none() | st.integers(1, 9)),
            checkpointing=draw(st.none() | st.booleans()),
        ),
        Passport(draw(texts), period_ms=draw(st.none() | st.floats(0, 1e6)), libraries=draw(st.dictionaries(texts, texts))),
        Measurement(
            status,
            allocated_bytes=allocated,
            reserved_bytes=None if allocated is None else allocated + more,
            process_bytes=draw(sizes),
            censored=status == "oom" or draw(st.booleans()),
            step_ms=draw(st.lists(st.floats(0, 1e6), max_size=4).map(tuple)),
            workspaces=draw(st.lists(st.tuples(texts, st.integers(0, 2**40)), max_size=3).map(tuple)),
        ),
    )


@given(runs())
def test_run_round_trips_through_json(run: Run) -> None:
    assert Run.from_dict(json.loads(json.dumps(run.to_dict()))) == run


@settings(max_examples=20)
@given(st.lists(runs(), max_size=5, unique_by=lambda run: run.id))
def test_set_round_trips_through_parquet(tmp_path_factory: pytest.TempPathFactory, given_runs: list[Run]) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path_factory.mktemp("set") / "runs.parquet"
    tables.write_runs(given_runs, path)
    reading = tables.read_set(path.parent)
    assert (reading.runs, reading.rejected) == (given_runs, [])


def test_field_missing_in_older_file_is_unknown(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "runs.parquet"
    tables.write_runs([RUN], path)
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.drop_columns(["workload.channels_last", "measurement.workers"]), path)
    (run,) = tables.read_runs(path).runs
    assert (run.workload.channels_last, run.measurement.workers) == (None, None)
    assert run.measurement.reserved_bytes == RUN.measurement.reserved_bytes


def test_rejects_equal_ids_and_foreign_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    with pytest.raises(DatasetError, match="Two runs have the id '1-7'"):
        tables.write_runs([RUN, RUN], tmp_path / "runs.parquet")
    assert not list(tmp_path.iterdir())
    strange = tmp_path / "strange.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), strange)
    with pytest.raises(DatasetError, match="not of vramcast's runs"):
        tables.read_runs(strange)
    strange.write_bytes(strange.read_bytes()[:-9])
    with pytest.raises(DatasetError, match="cannot be read as Parquet"):
        tables.read_runs(strange)
    with pytest.raises(DatasetError, match=r"no runs\.parquet"):
        tables.read_set(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": SCHEMA + 1}, "install a newer one"),
        ({"schema": True}, "must be 1 to 1"),
        ({"extra": 1}, "written by a newer vramcast"),
        ({"id": 7}, "run.id is 7: text"),
        ({"workload": None}, "an object is expected"),
        ({"workload": {}}, "run.workload has no 'name'"),
        ({"workload": {"name": "x", "precision": "fp8"}}, "one of fp32, bf16"),
        ({"workload": {"name": "x", "steps": 0}}, "must be at least 1"),
        ({"workload": {"name": "x", "features": {"a": None}}}, r"run.workload.features\['a'\] is None"),
        ({"measurement": {"status": "fine"}}, "one of ok, oom"),
        ({"measurement": {"status": "ok", "reserved_bytes": 0}}, "or null if it is unknown"),
        ({"measurement": {"status": "ok", "reserved_bytes": 1.5}}, "a whole number"),
        ({"measurement": {"status": "ok", "reserved_bytes": True}}, "a whole number"),
        ({"measurement": {"status": "ok", "reserved_bytes": 2**63}}, "below 2\\^63"),
        ({"measurement": {"status": "ok", "seconds": float("nan")}}, "a finite number"),
        ({"measurement": {"status": "ok", "allocated_bytes": 2, "reserved_bytes": 1}}, "swapped"),
        ({"measurement": {"status": "oom"}}, "needed more"),
        ({"measurement": {"status": "ok", "workspaces": [["a"]]}}, "a list of 2"),
    ],
)
def test_wrong_row_error_names_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        Run.from_dict({**RUN.to_dict(), **change})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.data())
def test_any_row_gives_run_or_dataset_error(data: st.DataObject) -> None:
    values = RUN.to_dict()
    group = data.draw(st.sampled_from(("workload", "passport", "measurement")))
    name = data.draw(st.sampled_from(sorted(values[group])))
    values[group][name] = data.draw(json_values)
    with contextlib.suppress(DatasetError):
        assert isinstance(Run.from_dict(values), Run)


def test_workload_gives_measured_job() -> None:
    job = RUN.workload.job(device("h200"))
    training = job.training
    assert job.target == "torchvision:resnet18"
    assert (training.optimizer, training.precision, training.steps) == ("adamw", "amp-bf16", 4)
    assert job.batch.shape == (8, 3, 64, 64)
    assert (job.labels.high if job.labels else None, training.channels_last, training.zero_grad) == (1000, True, "step-start")
    with pytest.raises(UsageError, match="only the peaks of this run are known"):
        Workload("job 17").job(device("h200"))


# ------------------------------------------------------------------------------------------------ the journal
def test_optimizer_of_untrusted_row_is_not_imported() -> None:
    workload = Workload(name="x", family="zoo", target="torchvision:resnet18", batch=("2x3x8x8",), optimizer="torch.optim:Adam")
    with pytest.raises(UsageError, match="its optimizer is code: pass --trust-targets"):
        workload.job(device("t4"))
    assert workload.job(device("t4"), trust=True).training.optimizer == "torch.optim:Adam"


def test_last_line_counts_and_damaged_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with Journal(path) as lines:
        lines.append(RUN.to_dict())
        lines.append(dataclasses.replace(RUN, measurement=Measurement("ok", 5, 6)).to_dict())
        lines.append({"id": "x"})
    with open(path, "ab") as file:
        file.write(b'\n["not an object"]\n{"id": "torn')
    reading = journal.read_runs(path)
    assert [(run.id, run.measurement.reserved_bytes) for run in reading.runs] == [("1-7", 6)]
    assert [r.where for r in reading.rejected] == ["runs.jsonl:3", "runs.jsonl:5", "runs.jsonl:6"]
    assert reading.rejected[-1].reason.startswith("torn")


def test_rejects_second_writer(tmp_path: Path) -> None:
    with Journal(tmp_path / "runs.jsonl"), pytest.raises(DatasetError, match="being written by another process"):
        Journal(tmp_path / "runs.jsonl")


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.release)])
def test_truncation_loses_at_most_last_line(tmp_path: Path, every: int) -> None:
    whole = tmp_path / "whole.jsonl"
    some = [dataclasses.replace(RUN, id=str(i)) for i in range(3)]
    with Journal(whole) as lines:
        for run in some:
            lines.append(run.to_dict())
    data = whole.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    around_ends = {end + beside for end in (0, *ends) for beside in (-2, -1, 0, 1, 2)}
    for cut in sorted({*range(0, len(data) + 1, every), *around_ends} & set(range(len(data) + 1))):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(data[:cut])
        with Journal(path) as lines:
            lines.append(dataclasses.replace(RUN, id="after").to_dict())
        complete = sum(end <= cut for end in ends)
        found = [run.id for run in journal.read_runs(path).runs]
        # A line that lacks only its end is terminated by the next writer.
        assert found in ([*map(str, range(complete)), "after"], [*map(str, range(complete + 1)), "after"])


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12: fork with threads
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.release)])
def test_kills_never_corrupt_the_store(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "runs.jsonl"
    row = json.dumps(RUN.to_dict())
    promised: set[str] = set()
    # One interpreter that forks a writer for each kill: a hundred starts of Python would take minutes.
    for number in range(kills):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            try:
                with Journal(path) as lines:
                    values = json.loads(row)
                    for i in range(10**9):
                        lines.append({**values, "id": f"{number}-{i}"})
                        os.write(write, f"{number}-{i}\n".encode())
            finally:
                os._exit(1)
        os.close(write)
        first = os.read(read, 1) if number % 2 else b""  # every other one has promised a run, however busy the machine is
        time.sleep(0.002 + 0.03 * number / kills)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(read, "rb") as said:
            promised.update((first + said.read()).decode().splitlines())
    with Journal(path) as lines:
        lines.append({**RUN.to_dict(), "id": "after"})
    reading = journal.read_runs(path)
    found = {run.id for run in reading.runs}
    assert promised <= found
    assert len(promised) >= kills // 2
    assert len(found - promised) <= kills + 1  # one in progress in each, and the one after
    assert len(reading.rejected) <= kills
    assert all("torn" in rejected.reason for rejected in reading.rejected)
