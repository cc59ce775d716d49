"""stdout and stderr in every state: closed, full, of another encoding. Never 0 without an answer, and never 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.cli import streams
from vramcast.cli.main import main
from vramcast.cli.verbs import devices
from vramcast.estimates.estimator import Estimator

LIMIT_S = 120
VERSION = [sys.executable, "-m", "vramcast", "--version"]


@pytest.mark.integration
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_stdout_exits_3_quietly() -> None:
    with open("/dev/full", "w") as full:
        found = subprocess.run(VERSION, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    assert found.returncode == 3
    assert found.stderr.startswith("vramcast: The answer cannot be written on stdout")
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.integration
def test_closed_streams_keep_exit_code(tmp_path: Path) -> None:
    command = f"'{sys.executable}' -m vramcast"
    codes = subprocess.run(
        f"""
        {command} --version >&-; echo $?
        {command} --version 2>&- >{tmp_path}/out <&-; echo $?
        {command} nonsense >&- 2>&- <&-; echo $?
        """,
        shell=True, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert codes.stdout.split() == ["3", "0", "2"]
    assert codes.stderr.count("\n") == 1
    assert "stdout is closed" in codes.stderr
    assert (tmp_path / "out").read_text().startswith("vramcast ")


@pytest.mark.integration
def test_verbs_work_without_docstrings() -> None:
    environment = {**os.environ, "PYTHONOPTIMIZE": "2"}
    command = [sys.executable, "-m", "vramcast", "replay", "--help"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert (found.returncode, found.stderr) == (0, "")
    assert "--what-if" in found.stdout


def test_reports_closed_stdout_before_working(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Estimator, "estimate_job", lambda *arguments, **options: pytest.fail("the job was traced"))
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["check", "--on", "t4", "x:y", "--batch", "8x16", "--json"]) == 3
    assert capsys.readouterr().err.startswith("vramcast: stdout is closed")


def test_broken_pipe_is_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["--version"]) == 0
    assert capsys.readouterr().err == ""


def test_broken_pipe_keeps_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`vramcast check ... | true` under pipefail: 0 would mean that the job fits."""

    def does_not_fit(options: object) -> int:
        streams.answer("one line, which has no reader")
        streams.answer("and another")
        return 1

    monkeypatch.setattr(devices, "main", does_not_fit)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["devices"]) == 1
    assert capsys.readouterr().err == ""


def test_unwritable_message_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        streams.say("nobody hears it")
        assert main(["nonsense"]) == 2


def test_replaces_unencodable_characters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        streams.answer("Größe \udc80")
        streams.say("Größe")
    assert (tmp_path / "out").read_text() == "Gr??e ?\nGr??e\n"
