from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli.main import main
from vramcast.datasets import journal
from vramcast.datasets.run import Run

Card = Callable[..., None]
# Writes its own use of the card for the replacement of NVML, and waits until it was sampled.
USES_THE_CARD = """
import os, sys, time
def use(size):
    with open(os.environ["NVML_STATE"] + ".new", "w") as file: file.write(f"{size}\\n{os.getpid()} {size}\\n")
    os.replace(os.environ["NVML_STATE"] + ".new", os.environ["NVML_STATE"])
    time.sleep(0.5)
use(700_000)
"""


def only_row(out: Path) -> Run:
    reading = journal.read_runs(out / "runs.jsonl")
    assert not reading.rejected
    (run,) = reading.runs
    return run


def script(path: Path, source: str) -> str:
    path.write_text(textwrap.dedent(source))
    return str(path)


def test_script_runs_unmodified_and_writes_row(card: Card, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    card(0)
    (tmp_path / "neighbor.py").write_text("word = 'found'")
    train = script(
        tmp_path / "train.py",
        USES_THE_CARD + "import neighbor; print(sys.argv[1:], __name__, neighbor.word, __file__ == sys.argv[0])",
    )
    assert main(["measure", "--out", str(tmp_path / "set"), "--", "python3", train, "--epochs", "1"]) == 0
    assert capfd.readouterr().out == "['--epochs', '1'] __main__ found True\n"
    run = only_row(tmp_path / "set")
    assert (run.measurement.status, run.measurement.process_bytes, run.passport.how) == ("ok", 700_000, "nvml process")
    assert run.workload.script == (train, "--epochs", "1")
    assert run.workload.script_sha256 == hashlib.sha256(Path(train).read_bytes()).hexdigest()
    assert run.measurement.samples is not None
    assert run.measurement.samples > 10


@pytest.mark.parametrize(
    ("ends", "code", "status", "message"),
    [
        ("sys.exit(3)", 3, "error", "exit code 3"),
        ("raise KeyError('no such layer')", 1, "error", "KeyError: 'no such layer'"),
        (
            "class OutOfMemoryError(RuntimeError): pass\nraise OutOfMemoryError('CUDA out of memory.')",
            1,
            "oom",
            "CUDA out of memory",
        ),
        ("os.kill(os.getpid(), 9)", 137, "killed", "exit code -9"),
    ],
)
def test_failing_script_writes_row_and_exit_code(
    card: Card, tmp_path: Path, ends: str, code: int, status: str, message: str
) -> None:
    card(0)
    train = script(tmp_path / "train.py", USES_THE_CARD + ends)
    assert main(["measure", "--out", str(tmp_path / "set"), "--", "python3", train]) == code
    run = only_row(tmp_path / "set")
    assert (run.measurement.status, run.measurement.process_bytes) == (status, 700_000)
    assert run.measurement.censored == (status in ("oom", "killed"))
    assert message in run.measurement.message


@pytest.mark.integration
def test_peak_is_unknown_without_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VRAMCAST_NVML", "libnot-there.so")
    (tmp_path / "package").mkdir()
    script(tmp_path / "package" / "train.py", "import sys; print(__name__, sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    assert main(["measure", "--out", "set", "--", "python", "-m", "package.train", "-x"]) == 0
    assert capfd.readouterr().out == "__main__ ['-x']\n"
    run = only_row(tmp_path / "set")
    assert (run.measurement.process_bytes, run.measurement.reserved_bytes) == (None, None)
    assert (run.passport.how, run.workload.script) == ("torch counters only", ("-m", "package.train", "-x"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["python3"], "No script"),
        (["python3", "-m"], "No script"),
        (["python3", "absent.py"], "does not exist"),
        (["bash", "run.sh"], "is not a Python script"),
    ],
)
def test_rejects_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], message: str) -> None:
    assert main(["measure", "--out", str(tmp_path / "set"), "--", *command]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "set").exists()


def test_row_has_counters_of_torch(probe: Callable[..., tuple[dict[str, Any], Any]], tmp_path: Path) -> None:
    train = script(
        tmp_path / "train.py",
        """
        import torch
        a = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        b = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
        del a
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        """,
    )
    noted, _ = probe(
        f"""
        from pathlib import Path
        from vramcast.datasets.collector import script_process as watched
        ours = sys.argv
        try: watched.main(Path({str(tmp_path / "answer.json")!r}), [{train!r}])
        except torch.OutOfMemoryError: note(raised=True)
        sys.argv = ours
        """
    )
    reply = json.loads((tmp_path / "answer.json").read_text())
    assert noted == {"raised": True}
    assert (reply["status"], reply["passport"]["gpu"]) == ("oom", "NVIDIA A100-SXM4-40GB")
    assert reply["counters"]["allocated_bytes"] == 40 << 20
    assert reply["counters"]["reserved_bytes"] >= 40 << 20
    assert reply["counters"]["oom_requested_bytes"] == 1 << 50
