"""Hooks import nothing from the folder of a submission or of a job, nor from the user's search path."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.cluster.slurm import programs

CONTRIB = Path(__file__).parents[3] / "contrib" / "slurm"
HOOKS = ("cli_filter.lua", "epilog.sh", "vramcast-peaks.service")
PLANTED = ("json", "argparse", "re", "typing", "tomllib", "sitecustomize", "usercustomize", "vramcast")


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """Return a folder with modules named like Python's own, which leave a file when they are imported."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'RUN')!r}, 'w')\nraise SystemExit('planted')\n")
    for name in ("timeout", "nvidia-smi", "scontrol"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path / 'RUN'}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_start_isolated_python_by_path(hook: str) -> None:
    text = (CONTRIB / hook).read_text()
    assert len(re.findall(r"-m\s+vramcast", text)) == len(re.findall(r"-I -P -m vramcast", text)) == 1
    assert re.search(r"[\"= ]/opt/vramcast/bin/python", text) or "PYTHON=/opt/vramcast/bin/python" in text
    assert not re.search(r"(?<!/usr/bin/)\btimeout (?!=)\d", text)


@pytest.mark.integration
@pytest.mark.parametrize("hook", [("submit", "sbatch", "{}"), ("epilog",), ("note-peak", "1", "x")])
def test_imports_nothing_from_user_folders(hook: tuple[str, ...], trapped: Path) -> None:
    settings = trapped / "vramcast.toml"
    settings.write_text("service = 'http://127.0.0.1:9'\n[partitions]\nsmall = 't4'\n")
    environment = {
        "PYTHONPATH": str(trapped),
        "PYTHONSTARTUP": str(trapped / "json.py"),
        "PATH": "/usr/bin:/bin",
        "HOME": str(trapped),
    }
    command = [sys.executable, "-I", "-P", "-m", "vramcast.cluster.slurm", "--settings", str(settings), *hook]
    limit_s = 60 if hook[0] != "note-peak" else 3  # it waits for a database that does not exist
    try:
        done = subprocess.run(
            command, cwd=trapped, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        pass
    else:
        assert (done.returncode, done.stderr) == (0, "")
    assert not (trapped / "RUN").exists()


@pytest.mark.integration
def test_imports_them_without_isolation(trapped: Path) -> None:
    command = [sys.executable, "-m", "json.tool", "--help"]
    subprocess.run(command, cwd=trapped, capture_output=True, timeout=60, check=False)
    assert (trapped / "RUN").exists()


@pytest.mark.parametrize("path", [".", "", "bin:.", "HERE:."])
def test_finds_programs_in_absolute_folders_only(path: str, trapped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trapped)
    (trapped / "bin").mkdir()
    (trapped / "here").mkdir()
    os.link(trapped / "timeout", trapped / "bin" / "timeout")
    monkeypatch.setenv("PATH", path.replace("HERE", str(trapped / "here")))
    assert programs.absolute("timeout").startswith(("/usr/", "/bin/"))
    assert programs.absolute("no-such-program") == "/usr/bin/no-such-program"
