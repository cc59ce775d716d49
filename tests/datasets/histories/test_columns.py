"""Tables with columns, units and status words of other people."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from vramcast.cli.main import main
from vramcast.core.errors import DatasetError, UsageError
from vramcast.core.units import GIB, MIB
from vramcast.datasets.histories import column_names, plain_csv
from vramcast.datasets.histories.format_detection import format_of
from vramcast.datasets.histories.statuses import WORDS, status_of
from vramcast.datasets.journal import JournalContent
from vramcast.hardware.cards import device
from vramcast.jobs.sizes import Sizes
from vramcast.jobs.targets import refusal

NATURAL = """job_id,user,Model,Batch Size,GPU,Max Memory (MiB),State,elapsed,Learning Rate
1,ada,resnet50,32,NVIDIA A100,4530,COMPLETED,1-00:00:10,0.1
2,ada,resnet50,64,NVIDIA A100,8530,OUT_OF_MEMORY,00:01:00,0.1
3,bob,vit,8,NVIDIA A100,2000,paused,60,0.1
"""
OTHER = """Net,Highest Mem,How it ended
resnet50,4530,finished
vit,2000,crashed
"""


def reading(text: str, folder: Path, **columns: str) -> JournalContent:
    (folder / "jobs.csv").write_text(text)
    return plain_csv.read(folder / "jobs.csv", columns=columns)


def test_natural_columns_need_no_mapping(tmp_path: Path) -> None:
    found = reading(NATURAL, tmp_path)
    first, second, third = found.runs
    assert first.id == "csv-1"
    assert (first.workload.name, first.workload.batch_size, first.workload.user) == ("resnet50", 32, "ada")
    assert (first.measurement.process_bytes, first.measurement.seconds) == (4530 * MIB, 86410.0)
    assert [run.measurement.status for run in found.runs] == ["ok", "killed", "unknown"]
    assert [run.measurement.censored for run in (first, second, third)] == [False, True, True]
    notes = " ".join(found.notes)
    assert "1 columns are ignored: Learning Rate" in notes
    assert "the status 'paused' of 1 rows is unknown" in notes
    assert "is taken for the process's peak" in notes
    assert format_of(tmp_path / "jobs.csv") == "csv"


@pytest.mark.parametrize(
    ("header", "cell", "size_bytes"),
    [
        ("Peak Memory (GB)", "2.5", 5 * GIB // 2),
        ("max_mem_bytes", "1048576", MIB),
        ("GPU memory [MiB]", "10", 10 * MIB),
        ("Max Memory", "10 MiB", 10 * MIB),
    ],
)
def test_units_in_headers_and_cells_count(header: str, cell: str, size_bytes: int, tmp_path: Path) -> None:
    assert reading(f"model,{header}\na,{cell}\n", tmp_path).runs[0].measurement.process_bytes == size_bytes


def test_number_without_unit_is_refused(tmp_path: Path) -> None:
    found = reading("model,Max Memory\na,4530\nb,4531\n", tmp_path)
    assert not found.runs
    assert len({one.kind for one in found.rejected}) == 1
    assert "process_mib" in found.rejected[0].reason


def test_mapping_names_any_column(tmp_path: Path) -> None:
    found = reading(OTHER, tmp_path, peak_mib="Highest Mem", model="Net", status="How it ended")
    assert [run.workload.name for run in found.runs] == ["resnet50", "vit"]
    assert [run.measurement.process_bytes for run in found.runs] == [4530 * MIB, 2000 * MIB]
    assert [run.measurement.status for run in found.runs] == ["ok", "killed"]


def test_batch_may_be_a_number(tmp_path: Path) -> None:
    found = reading("n,bb,p\na,32,1\n", tmp_path, model="n", batch="bb", peak_gib="p")
    assert found.runs[0].workload.batch_size == 32
    assert found.runs[0].workload.batch == ()


def test_model_of_a_registry_is_the_target_and_sizes_give_its_inputs(tmp_path: Path) -> None:
    text = """Name,Model,Batch Size,img_size,seq_len,VRAM (GiB),State
lake-1,torchvision:resnet18,8,3x64x64,,2,finished
lake-2,hf:bert,8,,128,2,finished
lake-3,hf:bert,8,,,2,finished
lake-4,resnet18,8,64,,2,finished
lake-5,gpt2,8,,64,2,finished
lake-6,ours,8,,64,2,finished
"""
    first, second, third, fourth, fifth, sixth = (run.workload for run in reading(text, tmp_path).runs)
    assert (first.name, first.target, first.image_size) == ("torchvision:resnet18",) * 2 + (64,)
    card = device("a100-40gb")
    assert first.job(card).sizes == Sizes(batch_size=8, image_size=64)
    assert second.job(card).sizes == Sizes(batch_size=8, seq=128)
    assert (third.target, third.has_inputs) == ("hf:bert", False)  # the length of a text is not guessed
    assert (fourth.name, fourth.target) == ("resnet18",) * 2
    assert refusal("resnet18") == "several models are named resnet18: write torchvision:resnet18 or timm:resnet18"
    assert (fifth.target, sixth.target) == ("hf:gpt2", None)
    with pytest.raises(UsageError, match="no target and batch"):
        third.job(card)


def test_missing_columns_give_one_error_with_a_line_to_use(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        reading(OTHER, tmp_path)
    for part in ("'Net'", "'Highest Mem'", "--columns 'peak_mib=Highest Mem,status=How it ended,model=Net'"):
        assert part in str(caught.value)


def test_two_peaks_are_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no column that is known to hold its peak"):
        reading("model,Max Memory (MiB),GPU Memory (MiB)\na,1,2\n", tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"peek": "Net"}, "did you mean 'peak'"), ({"peak": "Nett"}, "did you mean 'Net'"), ({"peak": "x"}, "it has Net,")],
)
def test_wrong_mapping_is_an_error_with_a_hint(columns: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        reading(OTHER, tmp_path, **columns)


def test_mlflow_table_needs_no_mapping(tmp_path: Path) -> None:
    text = "run_id,experiment_id,status,metrics.max_memory_allocated_bytes,params.batch_size,params.model,tags.mlflow.user\n"
    run = reading(text + "f00,1,FINISHED,1048576,8,vit,ada\n", tmp_path).runs[0]
    assert (run.id, run.measurement.status, run.measurement.allocated_bytes) == ("csv-f00", "ok", MIB)
    assert (run.workload.name, run.workload.batch_size, run.workload.user) == ("vit", 8, "ada")


def test_mapping_is_read_from_text_or_file(tmp_path: Path) -> None:
    pairs = {"peak_mib": "Max Mem", "model": "Net"}
    (tmp_path / "names.json").write_text(json.dumps(pairs))
    assert column_names.parsed("peak_mib=Max Mem, model=Net") == column_names.parsed(str(tmp_path / "names.json")) == pairs
    with pytest.raises(UsageError, match="FIELD=COLUMN"):
        column_names.parsed("peak_mib")


def test_every_program_has_the_same_words_for_the_same_end() -> None:
    assert {status_of(word) for word in ("COMPLETED", "Succeeded", "finished", "FINISHED", "done")} == {"ok"}
    assert {status_of(word) for word in ("OOMKilled", "OUT_OF_MEMORY", "CANCELLED by 7", "crashed", "Evicted")} == {"killed"}
    assert status_of("CUDA out of memory") == "oom"
    assert status_of("killed by signal") == "unknown"  # only Slurm's "CANCELLED by 7" loses its end
    assert {"PENDING", "SCHEDULED", "STARTERROR"} < WORDS.keys()
    assert "TERMINATED" not in WORDS  # a good end in one program, any end in another


def test_complaints_are_grouped_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{k:x}dead,m,{'x' if k % 2 else 'lots'}{k:x},1\n" for k in range(30))
    (tmp_path / "jobs.csv").write_text("id,name,process_mib,gpus\n" + rows + "a,m,5,0\nb,m,5,1\nb,m,5,1\n")
    assert main(["import", "csv", str(tmp_path / "jobs.csv"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rejected_by_reason"] == {
        "process_mib is not a size": 30,
        "workload.gpus is below 1": 1,
        "the run's id is in this file already": 1,
    }
    assert said["rejected_places"]["process_mib is not a size"] == "jobs.csv:2, 3, 4, ..."


def on_terminal(*arguments: str, answers: bytes = b"") -> tuple[int, str]:
    """Run a command on a terminal; return its exit code and what it showed."""
    terminal, its_end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "vramcast", *arguments], stdin=its_end, stdout=its_end, stderr=its_end
    ) as child:
        os.close(its_end)
        os.write(terminal, answers)
        said = b""
        with suppress(OSError):  # the child closed the terminal
            while part := os.read(terminal, 4096):
                said += part
    os.close(terminal)
    return child.returncode, " ".join(said.decode().split())  # lines wrap at its width


@pytest.mark.integration
@pytest.mark.parametrize(
    ("verb", "code", "end"),
    [(("import", "csv"), 0, "2 runs from 1 files of csv"), (("learn", "--dry-run", "--out", "none"), 2, "1 status killed")],
)
def test_terminal_is_asked_and_prints_the_line_to_reuse(verb: tuple[str, ...], code: int, end: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(OTHER)
    found, said = on_terminal(*verb, str(tmp_path / "jobs.csv"), answers=b"\n" * 6)
    assert found == code
    assert "column of the peak [Highest Mem]" in said
    assert "--columns 'model=Net,peak_mib=Highest Mem,status=How it ended'" in said
    assert end in said


@pytest.mark.integration
@pytest.mark.parametrize("verb", [("import", "csv"), ("learn", "--dry-run", "--out", "none")])
def test_terminal_is_not_asked_with_a_mapping(verb: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(OTHER)
    found, said = on_terminal(*verb, str(tmp_path / "jobs.csv"), "--columns", "peak_mib=Highest Mem")
    assert found == 2
    assert "column of the" not in said
    assert "no column that is known to hold the job" in said


def test_column_with_comma_needs_a_file() -> None:
    assert column_names.line_of({"peak_mib": "Mem, max"}) == '--columns columns.json, a file with {"peak_mib": "Mem, max"}'
