"""Detection of a history's format, and the error if it fails."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from vramcast.core.errors import DatasetError, UsageError
from vramcast.datasets.histories.format_detection import format_of

CASES = {
    "csv": "name,batch_size,gpu,process_mib,status\nresnet50,32,a100,4530,ok\n",
    "sacct": "JobID|JobName|State|AllocTRES|TRESUsageInMax\n1|x|COMPLETED|gres/gpu=1|gres/gpumem=3G\n",
    "sacct-json": '{"meta": {}, "jobs": [{"job_id": 1}]}',
    "jobstats": "JobID|AdminComment\n1|JS1:H4sI\n",
    "series": "timestamp, index, memory.used [MiB], memory.total [MiB]\n2026/01/01 00:00:00.000, 0, 1 MiB, 2 MiB\n",
    "runs": json.dumps({"id": "1", "workload": {"name": "a"}, "passport": {}, "measurement": {}, "schema": 1}) + "\n",
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("packed", [False, True])
def test_detects_format_from_beginning(tmp_path: Path, name: str, packed: bool) -> None:
    data = CASES[name].encode()
    (tmp_path / "file").write_bytes(gzip.compress(data) if packed else data)
    assert format_of(tmp_path / "file") == name


def test_detects_prometheus_and_pickles(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('# HELP DCGM_FI_DEV_FB_USED x\nDCGM_FI_DEV_FB_USED{gpu="0",hpc_job="3"} 1024\n')
    assert format_of(tmp_path / "a") == "series"
    (tmp_path / "b").write_bytes(pickle.dumps({"segments": []}))
    assert format_of(tmp_path / "b") == "snapshot"
    (tmp_path / "pai_sensor_table.csv").write_text("a,b\n")
    assert format_of(tmp_path / "pai_sensor_table.csv") == "pai"
    assert format_of(tmp_path) == "runs"
    assert format_of("set.parquet") == "runs"


def test_other_table_is_csv(tmp_path: Path) -> None:
    """Its reader names the columns that are missing."""
    (tmp_path / "a").write_text("a,b,c\n1,2,3\n")
    assert format_of(tmp_path / "a") == "csv"
    (tmp_path / "b").write_text(CASES["series"])
    assert format_of(tmp_path / "b", {"peak": "memory.used [MiB]", "name": "index"}) == "csv"


@pytest.mark.parametrize("text", ["hello\n", '{"a": 1}\n', "JobID|x\ngres/gpumem=1|JS1:abc\n"])
def test_unknown_beginning_asks_for_format(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(UsageError, match="--format"):
        format_of(tmp_path / "file")


def test_reports_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be read"):
        format_of(tmp_path / "absent")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(DatasetError, match="is empty"):
        format_of(tmp_path / "empty")
    (tmp_path / "cut").write_bytes(gzip.compress(b"x" * 1000)[:15])
    with pytest.raises(DatasetError, match="cannot be read"):
        format_of(tmp_path / "cut")
