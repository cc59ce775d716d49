"""Logs of training scripts, invented here: the peaks that are read, their units, and the lines left out."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.cli.main import main
from vramcast.core.errors import DatasetError
from vramcast.core.units import GIB, MIB
from vramcast.datasets.histories.formats import find
from vramcast.datasets.histories.logged import read, settings_of, split
from vramcast.datasets.histories.peak_lines import base_of, peak_of
from vramcast.datasets.journal import JournalContent, read_runs
from vramcast.datasets.run import Run

from .malformed import check
from .samples import LOGGED, LOGGED_FULL


def reading_of(folder: Path, text: str | bytes, *, script: str | None = None) -> JournalContent:
    path = folder / "train.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    if script is None:
        return read(path)
    (folder / "train.py").write_text(script)
    return read(path, script=folder / "train.py")


def run_of(folder: Path, text: str | bytes, *, script: str | None = None) -> Run:
    (run,) = reading_of(folder, text, script=script).runs
    return run


def peaks_of(folder: Path, text: str, *, script: str | None = None) -> tuple[int | None, int | None]:
    measured = run_of(folder, text, script=script).measurement
    return measured.allocated_bytes, measured.reserved_bytes


def test_reads_job_and_machine_from_log(tmp_path: Path) -> None:
    run = run_of(tmp_path, LOGGED)
    assert (run.measurement.allocated_bytes, run.measurement.reserved_bytes) == (3208 * MIB, 3374 * MIB)
    assert (run.measurement.status, run.measurement.censored) == ("ok", False)
    assert run.workload.script_sha256 == hashlib.sha256(split(LOGGED)[0]).hexdigest()
    assert run.workload.batch_size == 16
    features = run.workload.features
    assert (features["parameters"], features["ranks"], features["setting.rate"]) == (17_424_332, 8, 0.5)
    passport = run.passport
    assert (passport.gpu, passport.gpu_total_bytes) == ("NVIDIA H100 80GB HBM3", 81_559 * MIB)
    assert (passport.torch, passport.cuda, passport.driver, passport.python) == ("2.9.1+cu128", "12.8", "565.57.01", "3.12.3")


def test_accounts_for_every_peak_line(tmp_path: Path) -> None:
    reading = reading_of(tmp_path, LOGGED)
    assert reading.notes[0] == "train.log: 3 rows = 1 in 1 runs + 1 rejected + 1 skipped; 1 of peaks of 0 bytes"
    assert "may be based on 1000 or 1024" in reading.rejected[0].reason


def test_missing_values_are_unknown(tmp_path: Path) -> None:
    run = run_of(tmp_path, "peak memory consumption: 7 MiB\n")
    assert (run.measurement.allocated_bytes, run.measurement.reserved_bytes) == (7 * MIB, None)
    assert (run.passport.gpu, run.passport.torch, run.passport.cuda, run.passport.gpu_total_bytes) == (None,) * 4
    assert (run.workload.batch_size, run.workload.script_sha256, run.workload.features) == (None, None, {})


@pytest.mark.parametrize(
    ("line", "allocated", "reserved"),
    [
        ("peak memory allocated: 12 MiB reserved: 14 MiB", 12 * MIB, 14 * MIB),
        ("Rank 0: Peak allocated memory: 1.50 GiB", 1.5 * GIB, None),
        ("Rank 1: Peak reserved memory:  2.00 GiB", None, 2 * GIB),
        ("memory/reserved_peak: 1048576", None, MIB),
        ("torch.cuda.max_memory_reserved: 3GiB", None, 3 * GIB),
        ("torch.cuda.max_memory_allocated() = 2097152", 2 * MIB, None),
        ("  Max Memory Allocated : 1,024.5 MiB, loss 3", 1024.5 * MIB, None),
        ('{"peak_cuda_allocated_mib": 12.5, "x": 1}', 12.5 * MIB, None),
        ("train_peak_memory_reserved (GiB): 2", None, 2 * GIB),
        ("epoch 3 peak GPU memory allocated=5 MiB", 5 * MIB, None),
        ("\x1b[32m[rank0]:[titan] - INFO - step:  5  loss: 4.1  memory: 39.86GiB(50.35%)  tps: 3", None, round(39.86 * GIB)),
        ("Peak VRAM allocated for batch size 4: 100.25 MB", 100.25 * MIB, None),
    ],
)
def test_reads_usual_spellings(line: str, allocated: float | None, reserved: float | None, tmp_path: Path) -> None:
    assert peaks_of(tmp_path, f"{line}\n") == (allocated, reserved)


@pytest.mark.parametrize(
    "line",
    [
        "memory allocated: 12 MiB",  # the present value, not a peak
        "max steps 100, allocated 3 GiB",
        "peak memory: 3 GiB",  # of an unknown quantity
        "peak memory allocated: {torch.cuda.max_memory_allocated()} MiB",
        "train_mem_gpu_peaked_delta = 3GB",
        "peak allocated 12%",
        "peak allocated: 1e12",
        "memory_usage: 3GiB(4%)",
    ],
)
def test_ignores_other_lines(line: str, tmp_path: Path) -> None:
    reading = reading_of(tmp_path, line)
    assert not reading.runs
    assert reading.rejected[0].reason.startswith("No line has a peak")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("max_memory_allocated: 12.5 GB", "1000 or 1024"),
        ("max_memory_allocated: 3G", "1000 or 1024"),
        ("max_memory_allocated: 12.5", "no unit"),
        ("max_memory_allocated: 3208", "no unit"),  # perhaps MiB
        ("max_memory_allocated: 1048577", "no unit"),  # torch's counts are multiples of 512 bytes
        (f"max_memory_allocated: {'9' * 29} GiB", "exceeds the memory of any card"),
    ],
)
def test_rejects_size_with_uncertain_unit(line: str, reason: str, tmp_path: Path) -> None:
    reading = reading_of(tmp_path, line)
    assert not reading.runs
    assert reason in reading.rejected[0].reason


@pytest.mark.parametrize(
    ("source", "base"),
    [
        ("torch.cuda.max_memory_allocated() / 1024**2", 1024),
        ("torch.cuda.max_memory_reserved(0) // 1024 // 1024", 1024),
        ("(torch.cuda.max_memory_allocated(device)) / (1 << 30)", 1024),
        ("torch.cuda.max_memory_allocated() / 2**30", 1024),
        ("torch.cuda.max_memory_allocated() / 1e9", 1000),
        ("torch.cuda.max_memory_allocated()/1_000_000", 1000),
        ("torch.cuda.max_memory_allocated() / 10**9", 1000),
        ("max_memory_allocated() / 1e9; max_memory_reserved() / 2**30", None),
        ("peak = torch.cuda.max_memory_allocated()", None),
        ("", None),
    ],
)
def test_reads_units_from_source(source: str, base: int | None) -> None:
    assert base_of(source) == base


def test_separate_script_decides_units(tmp_path: Path) -> None:
    line = "max_memory_allocated: 12.5 GB\n"
    script = "import torch\nprint(torch.cuda.max_memory_allocated() / {})\n"
    assert peaks_of(tmp_path, line, script=script.format("1e9")) == (12_500_000_000, None)
    assert peaks_of(tmp_path, line, script=script.format("1024**3")) == (round(12.5 * GIB), None)
    run = run_of(tmp_path, line, script=script.format("1e9"))
    assert run.workload.name == "train.py"
    assert run.workload.script_sha256 == hashlib.sha256(script.format("1e9").encode()).hexdigest()


def test_takes_largest_of_several_lines(tmp_path: Path) -> None:
    steps = "".join(f"step: {n}  memory: {gib:.2f}GiB(9%)  tps: 1\n" for n, gib in enumerate((1, 3, 2)))
    assert peaks_of(tmp_path, steps) == (None, 3 * GIB)


def test_reads_ranks_and_card_of_torchtitan(tmp_path: Path) -> None:
    text = (
        "- INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.11GiB memory\n"
        "- INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n"
        "- INFO - Model llama3 8B size: 8,030,261,248 total parameters\n"
        "- INFO - Training starts at step 1, with local batch size 2, global batch size 8, sequence length 8192\n"
        "- INFO - step:  1  loss: 4.1  memory: 39.00GiB(49.30%)  tps: 3\n"
    )
    run = run_of(tmp_path, text)
    assert run.workload.features == {"parameters": 8_030_261_248, "ranks": 8}
    assert run.workload.batch_size == 2
    assert (run.passport.gpu, run.passport.gpu_total_bytes) == ("NVIDIA H100 80GB HBM3", round(79.11 * GIB))


def test_table_gives_run_per_batch_size(tmp_path: Path) -> None:
    text = (
        "Peak VRAM allocated for batch size 1: 9.50 MB\nBatch Size 1: 9.50 MB\nBatch Size 2: OOM (Peak before OOM: 80.00 MB)\n"
    )
    one, two = reading_of(tmp_path, text).runs
    assert (one.workload.batch_size, one.measurement.allocated_bytes, one.measurement.status) == (1, 9.5 * MIB, "ok")
    assert (two.workload.batch_size, two.measurement.allocated_bytes, two.measurement.status) == (2, 80 * MIB, "oom")
    assert two.measurement.censored
    assert one.id != two.id


def test_out_of_memory_is_lower_bound(tmp_path: Path) -> None:
    measured = run_of(tmp_path, LOGGED_FULL).measurement
    assert (measured.status, measured.censored, measured.oom_requested_bytes) == ("oom", True, 2 * GIB)
    assert (measured.allocated_bytes, measured.reserved_bytes) == (75 * GIB, 76.5 * GIB)
    assert measured.process_bytes == round(77.85 * GIB)
    older = (
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 24.00 GiB total capacity; 21.50 GiB already "
        "allocated; 10.69 MiB free; 22.00 GiB reserved in total by PyTorch)"
    )
    run = run_of(tmp_path, older)
    assert (run.measurement.allocated_bytes, run.measurement.reserved_bytes) == (21.5 * GIB, 22 * GIB)
    assert run.passport.gpu_total_bytes == 24 * GIB
    assert run_of(tmp_path, LOGGED + LOGGED_FULL).measurement.status == "oom"


def test_peak_near_capacity_is_lower_bound(tmp_path: Path) -> None:
    text = "CUDA capacity: A card with 10.00GiB memory\npeak memory allocated: 5 GiB reserved: {} GiB\n"
    assert run_of(tmp_path, text.format(9.5)).measurement.censored
    assert not run_of(tmp_path, text.format(9)).measurement.censored


def test_takes_settings_of_first_run(tmp_path: Path) -> None:
    rule = "=" * 100
    text = f"batch_size:3\n{rule}\nbatch_size:4\npeak memory allocated: 9 MiB\n"
    assert run_of(tmp_path, text).workload.batch_size == 4


def test_settings_end_at_first_step() -> None:
    assert settings_of(["aa:1 bb=[0, 2] path:/x", "aa:2", "step:1/3 loss:4"]) == {"aa": "1", "bb": "[0, 2]", "path": "/x"}


def test_same_log_is_same_run(tmp_path: Path) -> None:
    one = run_of(tmp_path, LOGGED).id
    (tmp_path / "other").mkdir()
    assert run_of(tmp_path / "other", LOGGED).id == one
    assert run_of(tmp_path, LOGGED + b"\n").id != one


@pytest.mark.parametrize("content", [b"", b"\x80\x04\x95\x00" * 1000, b"x" * 2_000_000, b"peak memory alloc", b"\n" * 100_000])
def test_rejects_log_without_peak(content: bytes, tmp_path: Path) -> None:
    reading = reading_of(tmp_path, content)
    check(reading)
    assert not reading.runs
    assert len(reading.rejected) == 1


def test_endless_line_costs_only_itself(tmp_path: Path) -> None:
    run = run_of(tmp_path, b"x" * 2_000_000 + b"\r\npeak memory allocated: 9 MiB\n")
    assert run.measurement.allocated_bytes == 9 * MIB


@given(
    st.sampled_from(
        ["max_memory_allocated", "peak", "device mesh with [", "|   0  ", "memory:", "1MiB", "CUDA out of memory. "]
    ),
    st.sampled_from([" ", "_", "1", "\"' ", "(", "mem ", "a"]),
)
def test_reads_any_line_quickly(start: str, filler: str) -> None:
    """A quadratic pattern would take minutes for these inputs: the deadline of the test is the check."""
    line = (start + filler * (9_000 // len(filler)))[:9_999]
    with suppress(DatasetError):
        peak_of(1, line, None)


def test_script_option_needs_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_bytes(LOGGED)
    (tmp_path / "train.py").write_text("import torch\nx = torch.cuda.max_memory_allocated() / 1e9\n")
    store = tmp_path / "runs.jsonl"
    words = [str(tmp_path / "train.log"), "--script", str(tmp_path / "train.py")]
    assert main(["import", "logged", *words, "--out", str(store)]) == 0
    assert len(read_runs(store).runs) == 1
    assert main(["import", "csv", *words]) == 2
    assert "--script applies to logs" in capsys.readouterr().err
    assert find("logged").takes_script


def test_missing_script_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("peak memory allocated: 9 MiB\n")
    with pytest.raises(DatasetError, match="absent"):
        read(tmp_path / "train.log", script=tmp_path / "absent.py")
