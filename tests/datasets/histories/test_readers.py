"""The readers' results for valid files: units, missing values, censoring, cards, and rejected rows."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path

import pytest

from vramcast.core.errors import DatasetError, UsageError
from vramcast.core.units import GIB, MIB
from vramcast.datasets.histories import jobstats
from vramcast.datasets.histories.formats import FORMATS, find
from vramcast.datasets.histories.reader import number, size_bytes, whole
from vramcast.datasets.journal import JournalContent
from vramcast.datasets.run import Run
from vramcast.hardware.cards import device

from . import samples


def reading(format_name: str, content: bytes, folder: Path, file: str = "file.txt") -> JournalContent:
    (folder / file).write_bytes(content)
    return FORMATS[format_name].read(folder / file)


def by_id(found: JournalContent) -> dict[str, Run]:
    return {run.id: run for run in found.runs}


def test_sacct_takes_largest_step_without_extern(tmp_path: Path) -> None:
    found = reading("sacct", samples.SACCT, tmp_path)
    job = by_id(found)["sacct-11"]
    assert job.measurement.process_bytes == 2 * GIB
    assert job.measurement.status == "ok"
    assert not job.measurement.censored
    assert (job.workload.gpus, job.passport.gpu, job.workload.user, job.workload.name) == (2, "a100", "ada", "train")
    assert job.measurement.seconds == 26 * 3600 + 3
    assert "of 2 in the job" in job.measurement.message


def test_sacct_treats_zero_as_missing(tmp_path: Path) -> None:
    job = by_id(reading("sacct", samples.SACCT, tmp_path))["sacct-12"]
    assert job.measurement.process_bytes is None
    assert (job.measurement.status, job.measurement.censored) == ("killed", True)
    assert "host" in job.measurement.message


def test_sacct_accounts_for_all_rows(tmp_path: Path) -> None:
    found = reading("sacct", samples.SACCT, tmp_path)
    assert "9 rows = 6 in 2 runs + 1 rejected + 2 skipped" in found.notes[0]
    assert found.rejected[0].text == "nonsense"


def test_sacct_detects_columns_without_header(tmp_path: Path) -> None:
    found = reading("sacct", samples.SACCT_BARE, tmp_path)
    assert by_id(found)["sacct-7"].measurement.process_bytes == 100 * MIB
    assert "3 rows = 3 in 1 runs" in found.notes[0]


@pytest.mark.parametrize(("text", "size_bytes"), [("1K", 1024), ("1.5G", 3 * 2**29), ("2T", 2**41), ("0", None), ("77", 77)])
def test_sacct_reads_binary_suffixes(text: str, size_bytes: int | None, tmp_path: Path) -> None:
    found = reading("sacct", f"1.0|gres/gpumem={text}|gres/gpu=1\n".encode(), tmp_path)
    assert found.runs[0].measurement.process_bytes == size_bytes


@pytest.mark.parametrize(
    ("state", "status"),
    [("FAILED", "error"), ("CANCELLED by 7", "killed"), ("TIMEOUT", "timeout"), ("NODE_FAIL", "killed")],
)
def test_incomplete_slurm_jobs_are_lower_bounds(state: str, status: str, tmp_path: Path) -> None:
    text = f"JobID|State|TRESUsageInMax\n5|{state}|\n5.0|{state}|gres/gpumem=1G\n"
    run = reading("sacct", text.encode(), tmp_path).runs[0]
    assert (run.measurement.status, run.measurement.censored, run.measurement.process_bytes) == (status, True, GIB)


def test_sacct_json_reads_every_version(tmp_path: Path) -> None:
    found = reading("sacct-json", samples.SACCT_JSON, tmp_path)
    first, second = by_id(found)["sacct-20_3"], by_id(found)["sacct-22"]
    assert first.measurement.process_bytes == 2**31
    assert (first.workload.gpus, first.passport.gpu, first.measurement.status) == (2, "a100", "ok")
    assert second.measurement.process_bytes is None
    assert (second.measurement.status, second.measurement.censored) == ("timeout", True)
    assert "4 rows = 2 in 2 runs + 1 rejected + 1 skipped" in found.notes[0]


def test_jobstats_gives_run_per_card(tmp_path: Path) -> None:
    found = reading("jobstats", samples.JOBSTATS, tmp_path)
    first, full = by_id(found)["jobstats-31-n1-0"], by_id(found)["jobstats-31-n1-1"]
    assert (first.measurement.process_bytes, first.measurement.censored) == (GIB, False)
    assert (full.measurement.process_bytes, full.measurement.censored) == (39 * GIB, True)
    assert full.passport.gpu_total_bytes == 40 * GIB
    assert "5 rows = 1 in 2 runs + 1 rejected + 3 skipped" in found.notes[0]


def test_jobstats_rejects_too_large_summary(tmp_path: Path) -> None:
    bomb = base64.b64encode(gzip.compress(b" " * (jobstats.MAX_JSON_BYTES + 1)))
    found = reading("jobstats", b"JobID|AdminComment\n1|JS1:" + bomb + b"\n", tmp_path)
    assert not found.runs
    assert "unpacks to more than" in found.rejected[0].reason


def test_series_takes_largest_sample_and_period(tmp_path: Path) -> None:
    found = reading("series", samples.SERIES, tmp_path, "99.csv")
    first, full = by_id(found)["series-99-0"], by_id(found)["series-99-1"]
    assert first.measurement.process_bytes == first.measurement.device_bytes == 3000 * MIB
    assert (first.passport.period_ms, first.measurement.samples, first.measurement.seconds) == (500.0, 3, 1.0)
    assert first.passport.gpu == "NVIDIA A100-SXM4-40GB"
    assert full.measurement.censored
    assert "6 rows = 4 in 2 runs + 1 rejected + 1 skipped" in found.notes[0]


def test_series_reads_mit_supercloud_names(tmp_path: Path) -> None:
    run = by_id(reading("series", samples.SUPERCLOUD, tmp_path))["series-5-0"]
    assert run.measurement.process_bytes == 2510 * MIB
    assert run.passport.gpu_total_bytes == 32510 * MIB
    assert run.passport.period_ms == pytest.approx(100, abs=0.1)


def test_series_reads_dcgm_exporter_samples(tmp_path: Path) -> None:
    found = reading("series", samples.PROMETHEUS, tmp_path)
    run = by_id(found)["series-41-n1-0"]
    assert run.measurement.process_bytes == 990 * MIB
    assert (run.passport.gpu_total_bytes, run.measurement.censored) == (1000 * MIB, True)
    assert (run.passport.period_ms, run.passport.how) == (30_000, "dcgm device")
    assert "6 rows = 4 in 1 runs + 1 rejected + 1 skipped" in found.notes[0]


def test_series_needs_memory_column(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"memory\.used"):
        reading("series", b"a,b\n1,2\n", tmp_path)


def test_pai_joins_tables_and_reads_gib(tmp_path: Path) -> None:
    (tmp_path / "pai_task_table.csv").write_bytes(samples.PAI_TASK)
    (tmp_path / "pai_instance_table.csv").write_bytes(samples.PAI_INSTANCE)
    first, second, third = reading("pai", samples.PAI, tmp_path, "pai_sensor_table.csv").runs
    assert first.measurement.process_bytes == 5 * GIB // 2
    assert (first.measurement.status, first.passport.gpu, first.workload.gpus) == ("error", "V100", 1)
    assert (second.measurement.process_bytes, second.measurement.status) == (None, "ok")
    assert (third.workload.gpus, third.measurement.status) == (3, "error")


def test_pai_notes_unit_and_rejects_damaged_rows(tmp_path: Path) -> None:
    found = reading("pai", samples.PAI, tmp_path, "pai_sensor_table.csv")
    assert "5 rows = 3 in 3 runs + 2 rejected" in found.notes[0]
    assert any("2^30" in note for note in found.notes)
    assert found.runs[0].measurement.status == "unknown"


def test_pai_peak_of_undocumented_status_is_a_lower_bound(tmp_path: Path) -> None:
    (tmp_path / "pai_instance_table.csv").write_bytes(samples.PAI_INSTANCE.replace(b"Failed", b"Interrupted"))
    first = reading("pai", samples.PAI, tmp_path, "pai_sensor_table.csv").runs[0]
    assert (first.measurement.status, first.measurement.censored) == ("unknown", True)


def test_snapshot_gives_peaks_and_failed_request(tmp_path: Path) -> None:
    found = reading("snapshot", samples.SNAPSHOT, tmp_path)
    (run,) = found.runs
    assert (run.measurement.allocated_bytes, run.measurement.reserved_bytes) == (1024, 2 * MIB)
    assert (run.measurement.status, run.measurement.oom_requested_bytes) == ("oom", 2**40)
    assert "2 rows = 1 in 1 runs + 0 rejected + 1 skipped" in found.notes[0]


def test_plain_table_reads_units_from_columns(tmp_path: Path) -> None:
    found = reading("csv", samples.CSV, tmp_path)
    one, two, four = found.runs
    assert (one.measurement.reserved_bytes, one.measurement.process_bytes) == (1000 * MIB, 5 * GIB // 2)
    assert one.workload.features == {"parameters": 11689512.0}
    assert one.workload.job(device("h200")).training.optimizer == "sgdm"
    assert two.measurement.censored
    assert four.measurement.reserved_bytes is None
    assert "precision" in found.rejected[0].reason


def test_plain_table_names_unknown_column(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="'colour'"):
        reading("csv", b"name,colour\na,red\n", tmp_path)


def test_journals_reject_torn_lines(tmp_path: Path) -> None:
    found = reading("runs", samples.RUNS, tmp_path)
    assert [run.id for run in found.runs] == ["a"]
    assert len(found.rejected) == 2


def test_equal_rows_without_id_are_repeats(tmp_path: Path) -> None:
    rows = samples.CSV.splitlines(keepends=True)
    found = reading("csv", rows[0] + rows[1] + rows[1], tmp_path)
    assert (len(found.runs), len(found.rejected)) == (2, 0)
    first, second = found.runs
    assert second.id == f"{first.id}-2"
    again = reading("csv", rows[0] + rows[1] + rows[1], tmp_path)
    assert [run.id for run in again.runs] == [first.id, second.id]


def test_unknown_format_error_names_formats() -> None:
    with pytest.raises(UsageError, match="sacct-json"):
        find("excel")


def test_sacct_prefers_peak_noted_by_epilog(tmp_path: Path) -> None:
    text = (
        "JobID|JobName|State|AllocTRES|TRESUsageInMax|AdminComment\n"
        "1|a|COMPLETED|gres/shard=4||vramcast-peak=3250:14913:tesla-t4\n"
        "2|b|COMPLETED|gres/gpu=2||vramcast-peak=9000:40507:nvidia-a100-sxm4-40gb\n2.0|b|COMPLETED||gres/gpumem=18G|\n"
        "3|c|COMPLETED|gres/gpu=1||vramcast-peak=14500:14913:tesla-t4\n"
    )
    found = by_id(reading("sacct", text.encode(), tmp_path))
    first, two, full = (found[f"sacct-{k}"] for k in (1, 2, 3))
    assert (first.measurement.process_bytes, first.passport.gpu_total_bytes) == (3250 * MIB, 14913 * MIB)
    assert (first.passport.gpu, first.workload.gpus, first.measurement.censored) == ("tesla-t4", 1, False)
    assert (two.measurement.process_bytes, two.measurement.message) == (9000 * MIB, "the fullest of 2 cards")
    assert full.measurement.censored


@pytest.mark.parametrize("text", ["1_000", "１２３", "1_0.5", "٣"])
def test_rejects_numbers_without_plain_digits(text: str) -> None:
    for read in (number, whole, size_bytes):
        with pytest.raises(DatasetError, match="must be"):
            read(text, "process_bytes")
