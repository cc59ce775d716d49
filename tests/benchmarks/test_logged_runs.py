"""Tests of logs that contain their script, their data, and the verdict on a run: on small made-up logs, without any run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy.logs import logged_data
from benchmarks.accuracy.logs.logged import Answer, Reason, Run, hits, judge, read_runs, release_of, report, until_peak_line
from benchmarks.accuracy.logs.logged_sources import Log, Peaks, differences, launched, needs, read_log, sha_of, variables
from vramcast.datasets.histories.logged import split

RULE = "=" * 100
SOURCE = 'import os\nlayers = int(os.environ.get("NUM_LAYERS", 9))\nseq = int(os.environ["TRAIN_SEQ_LEN"])\n'
PRINTED = """
Running Python 3.12.3 [GCC 13.3.0]
|   0  NVIDIA GeForce RTX 4090        Off |   00000000:02:00.0 Off |
| N/A   49C    P8              7W /  175W |     302MiB /  24564MiB |      0%      Default |
{rule}
tokenizer_path=c:/data/tokenizers/a.model
train_loader:dataset:fineweb10B_sp1024 train_shards:1
val_loader:shards pattern=c:/data/fineweb_val_*.bin tokens:62021632
model_params:17059912
train_seq_len:512 num_layers:10 embed_lr:0.05 tie_embeddings:True iterations:200 warmup_steps:5 max_wallclock_seconds:180.000
warmup_step:1/5
step:1/200 train_loss:6.9371 num_layers:99
peak memory allocated: 3208 MiB reserved: 3374 MiB
"""
LOG = PRINTED.format(rule=RULE)
ROW = {
    "script": "0123456789ab",
    "log_blob": "f" * 40,
    "log_path": "records/a/train.txt",
    "gpu": "NVIDIA GeForce RTX 4090",
    "torch": "2.8.0+cu128",
    "compile": "eager (no torch.compile in the source)",
    "world_size": "1",
}


def run_of(text: str = LOG, *, beside: str = "", **row: str) -> Run:
    return Run({**ROW, **row}, SOURCE, read_log(text), beside)


def test_splits_source_from_log() -> None:
    source, text = split(f"{SOURCE}{RULE}\nwhat it prints".encode())
    assert source == SOURCE.encode()
    assert text == "\nwhat it prints"
    assert len(sha_of(source)) == 12
    assert split(f"{RULE}\n{SOURCE}{RULE}\nprinted".encode()) == (f"\n{SOURCE}".encode(), "\nprinted")
    assert split(b"no source") == (b"", "no source")


def test_reads_settings_before_first_step() -> None:
    log = read_log(LOG)
    assert log.peaks == Peaks(3208, 3374)
    assert log.total_mib == 24564
    assert not log.windows
    assert log.settings["num_layers"] == "10"
    assert log.settings["dataset"] == "fineweb10B_sp1024"
    assert "train_loss" not in log.settings


def test_reads_settings_of_run_with_peak() -> None:
    first = "num_layers:3\n"
    assert read_log(f"{first}{SOURCE}{LOG}").settings["num_layers"] == "10"


@pytest.mark.parametrize(
    ("source", "ranks", "said"),
    [
        ("x = get_kernel('a/b')\nassert world_size == 8", "1", "a kernel from a hub"),
        ("from flash_attn_interface import f", "1", "FlashAttention 3"),
        ("assert world_size == 8", "1", "8 ranks"),
        ("import torch", "8", "8 ranks"),
        ("import torch", "1", "nothing"),
        ("", "1", "a log with its source"),
    ],
)
def test_finds_requirements_in_source(source: str, ranks: str, said: str) -> None:
    assert needs(source, ranks) == said


def test_maps_settings_to_variables_of_source() -> None:
    assert variables(SOURCE, read_log(LOG).settings) == {"NUM_LAYERS": "10", "TRAIN_SEQ_LEN": "512"}
    assert variables('get("TIE_EMBEDDINGS")', {"tie_embeddings": "True"}) == {"TIE_EMBEDDINGS": "1"}
    read = 'gates_enabled: bool = bool(int(os.environ.get("GATES", "0")))'
    assert variables(read, {"gates_enabled": "True", "other": "1"}) == {"GATES": "1"}
    shown = 'model_dim = int(os.environ.get("MODEL_DIM", 384))\nprint(f"dim:{args.model_dim}")'
    assert variables(shown, {"dim": "512"}) == {"MODEL_DIM": "512"}
    number = 'dims = int(os.environ.get("ROPE_DIMS", 0))'
    assert variables(number, {"rope_dims": "full"}) == {}
    assert variables(number, {"rope_dims": "16"}) == {"ROPE_DIMS": "16"}
    assert variables('get("SAVE_TO")', {"save_to": "/home/a/b.pt"}) == {}
    listed = read_log(LOG.replace("num_layers:10", "num_layers:[0, 2] heads:4")).settings
    assert variables('get("NUM_LAYERS")', listed)["NUM_LAYERS"] == "0,2"
    assert listed["heads"] == "4"


def test_ignores_different_rates_among_settings() -> None:
    logged = read_log(LOG).settings
    assert differences(logged, {**logged, "embed_lr": "0.06", "iterations": "4", "tokens": "9"}) == []
    assert differences(logged, {**logged, "model_params": "5"}) == ["model_params 17059912, here 5"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NUM_LAYERS=10 torchrun --nproc_per_node=1 train_gpt.py", ({"NUM_LAYERS": "10"}, True)),
        ('"config": {"NUM_LAYERS": "10"}, "step": 2', ({"NUM_LAYERS": "10"}, None)),
        ("NUM_LAYERS=10 python train_gpt.py, then NUM_LAYERS=11", ({}, False)),
        ("nothing", ({}, None)),
    ],
)
def test_reads_variables_and_launcher_from_texts(text: str, said: tuple[dict[str, str], bool | None]) -> None:
    assert launched(text) == said


def test_prefers_author_over_project_for_launcher() -> None:
    assert run_of(gpu="a card").by_torchrun
    assert not run_of(gpu="a card", beside="python train_gpt.py").by_torchrun
    assert not run_of(gpu="a card", log_path="results/step2/s2_ema/train.log").by_torchrun
    assert not run_of("MSC v.1944" + LOG).by_torchrun


def test_takes_runs_with_given_ranks(tmp_path: Path) -> None:
    rows = [{**ROW, "world_size": ranks, "script": "s", "log_blob": "l"} for ranks in ("1", "8", "")]
    (tmp_path / "s.py").write_text(SOURCE)
    (tmp_path / "l.log").write_text(LOG)
    assert [run.world_size for run in read_runs(rows, tmp_path)] == [1]
    assert [run.world_size for run in read_runs(rows, tmp_path, 8)] == [8]


def test_ignores_contradicting_variables_of_author() -> None:
    assert run_of(beside="NUM_LAYERS=10 TRAIN_SEQ_LEN=512.0").said_beside() == {"NUM_LAYERS": "10", "TRAIN_SEQ_LEN": "512.0"}
    assert run_of(beside="NUM_LAYERS=10 TRAIN_SEQ_LEN=1024").said_beside() == {}


def test_detects_collective_from_context_size() -> None:
    assert not run_of().by_torchrun  # 302 MiB: only a context
    assert run_of(LOG.replace("302MiB", "912MiB"), beside="python train_gpt.py").by_torchrun
    processes = (
        "|    0   N/A  N/A  1257      G   /usr/lib/xorg/Xorg     {}MiB |\n|    0   N/A  N/A  99      C   python     {}MiB |\n"
    )
    with_display = LOG.replace("302MiB", "1302MiB")
    assert not run_of(processes.format(912, 11492) + with_display).by_torchrun  # a screen, and another job with its model
    assert run_of(processes.format(12, 902) + with_display).by_torchrun
    assert run_of(with_display).by_torchrun  # the owner of the memory is unknown


def test_writes_header_and_tokens_of_shard(tmp_path: Path) -> None:
    data = logged_data.shards(tmp_path, 1024, 2048, train_tokens=1000)
    assert data.name == "fineweb10B_sp1024"
    header = np.fromfile(data / "fineweb_val_000000.bin", dtype="<i4", count=256)
    assert header[:3].tolist() == [20240520, 1, 2049]
    tokens = np.fromfile(data / "fineweb_val_000000.bin", dtype="<u2", offset=1024)
    assert len(tokens) == 2049
    assert tokens.max() < 1024


def test_cuts_validation_set_to_same_last_batch() -> None:
    assert logged_data.val_tokens(62_021_632) % 524_288 == 62_021_632 % 524_288
    assert logged_data.val_tokens(62_021_632) < 2_000_000
    assert logged_data.val_tokens(2048) == 2048


def test_cut_run_keeps_logged_shapes(tmp_path: Path) -> None:
    run = run_of("MSC v.1944" + LOG.replace("62021632", "2048"))
    (tmp_path / "tokenizers").mkdir()
    (tmp_path / "tokenizers" / "fineweb_1024_bpe.model").touch()  # as if it had been trained
    given = run.environment(tmp_path)
    assert given["TRAIN_SEQ_LEN"] == "512"
    assert (given["ITERATIONS"], given["WARMUP_STEPS"]) == ("4", "2")
    assert "RANK" not in given
    assert given["VAL_LOSS_EVERY"] == "0"  # no line of a validation before the first step


def test_starts_late_settings_at_first_step() -> None:
    text = LOG.replace("num_layers:10", "num_layers:10 gates_start:500 ema_start:2 lr_start:0.5")
    run = Run(ROW, SOURCE + 'get("GATES_START"), get("EMA_START"), get("LR_START")', read_log(text))
    assert run.begins == {"gates_start": "1"}
    assert run_of(text).begins == {}  # the script does not read this variable


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": "NVIDIA GeForce GTX 480"}, Reason.CARD),
        ({"gpu": "NVIDIA GeForce RTX 3060"}, Reason.CARD),  # with another size
        ({"torch": "2.12.0.dev20260322+cu128"}, Reason.STACK),
        ({}, None),
    ],
)
def test_leaves_out_unusable_runs_with_reason(changes: dict[str, str], reason: Reason | None) -> None:
    assert run_of(**changes).left_out() is reason


def test_leaves_out_other_data_and_unprinted_settings() -> None:
    assert run_of(LOG.replace("sp1024", "byte260")).left_out() is Reason.DATA
    assert run_of(LOG.replace("model_params", "nothing")).left_out() is Reason.SETTINGS


def test_compares_eager_to_mib_and_compiled_to_percent() -> None:
    logged = Peaks(3208, 3374)
    assert hits(logged, Peaks(3209, 3374), compiled=False) == (True, True)
    assert hits(logged, Peaks(3220, 3420), compiled=False) == (False, False)
    assert hits(logged, Peaks(3220, 3374), compiled=True) == (True, True)


@pytest.mark.parametrize(
    ("answer", "compiled", "reason"),
    [
        (Answer("f", line=(3208, 3374)), "eager", None),
        (Answer("f", line=(3000, 3374)), "eager", Reason.TORCH),
        (Answer("f", line=(3000, 3374)), "compiled", Reason.INDUCTOR),
        (Answer("f", line=(3208, 3374), otherwise=["model_params 1, here 2"]), "eager", Reason.SETTINGS),
        (Answer("f", message="The job raised ValueError"), "eager", Reason.RAISED),
        (Answer("f", message="It did not end within 900 s"), "eager", Reason.TIME),
    ],
)
def test_gives_reason_for_every_miss(answer: Answer, compiled: str, reason: Reason | None) -> None:
    assert judge(run_of(compile=compiled), answer).reason is reason


def test_report_counts_runs_within_aims() -> None:
    good = judge(run_of(), Answer("f", 3208 << 20, 3374 << 20))
    bad = judge(run_of(), Answer("f", line=(3000, 3374)))
    text = report([good, bad, judge(run_of(torch="2.12.0.dev1"), None)])
    assert "| eager | 2 | 1 | 50 % | 100 % |" in text
    assert "| left out | the torch is not in the table | 1 |" in text
    assert "| missed | operators of another torch | 1 |" in text
    assert isinstance(good.run.log, Log)


def test_uses_torch_of_log_or_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for release in ("2.6.0", "2.8.0"):
        (tmp_path / release / "bin").mkdir(parents=True)
        (tmp_path / release / "bin" / "python").touch()
    monkeypatch.setattr("benchmarks.accuracy.logs.logged._installed", lambda: "2.11.0")
    assert release_of("2.8.0+cu128", tmp_path) == "2.8.0"
    assert release_of("2.4.1+cu124", tmp_path) == "2.6.0"
    assert release_of("2.8.0.dev20250319+cu128", tmp_path) == "2.8.0"
    assert release_of("2.10.0+cu128", tmp_path) == ""
    assert release_of("2.8.0+cu128", None) == ""
    missed = Answer("f", line=(3000, 3374), torch="2.8.0")
    assert judge(run_of(), missed).reason is Reason.OPEN
    assert "| compiled, the log's release of torch | 1 | 1 | 0 % |" in report([judge(run_of(compile="compiled"), missed)])


@pytest.mark.integration
def test_stops_run_after_printed_peaks(tmp_path: Path) -> None:
    code = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests themselves may run in a shell's background
try:
    print("peak memory allocated: 7 MiB reserved: 8 MiB", file=sys.stderr, flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("the answer")
"""
    assert until_peak_line([sys.executable, "-c", code], tmp_path, os.environ)[:2] == (0, "the answer\n")
