"""[tool.vramcast]: the jobs that it names, and the errors for a wrong table."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.cli.project.repository_check import read_jobs
from vramcast.core.errors import UsageError


def written(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_job_overrides_shared_options(tmp_path: Path) -> None:
    text = """
        [tool.vramcast]
        device = "t4"
        level = 0.9
        [tool.vramcast.jobs.one]
        target = "torchvision:resnet18"
        [tool.vramcast.jobs.two]
        command = ["train.py", "--epochs", "1"]
        device = "h100"
    """
    assert read_jobs(written(tmp_path, text)) == {
        "one": {"device": "t4", "level": 0.9, "target": "torchvision:resnet18"},
        "two": {"device": "h100", "level": 0.9, "command": ["train.py", "--epochs", "1"]},
    }


@pytest.mark.parametrize("text", ["", "[project]\nname = 'x'", "[tool.ruff]\nline-length = 1"])
def test_names_no_jobs_without_table(tmp_path: Path, text: str) -> None:
    assert read_jobs(tmp_path) is None
    assert read_jobs(written(tmp_path, text)) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.vramcast", "is not valid TOML"),
        ("tool.vramcast = 5", "must be a table"),
        ("[tool.vramcast]\ndevice = 't4'", "names no job"),
        ("[tool.vramcast.jobs]", "names no job"),
        ("tool.vramcast.jobs = 5", "names no job"),
        ("[tool.vramcast.jobs]\none = 'torchvision:resnet18'", "tool.vramcast.jobs.one is 'torchvision:resnet18'"),
        ("[tool.vramcast.resnet]\ntarget = 'x:y'", r"\[tool.vramcast.jobs.resnet\]"),
        ("a = " + "[" * 5000, "is not valid TOML"),
    ],
)
def test_wrong_table_error_names_expectation(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_jobs(written(tmp_path, text))


def test_rejects_binary_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="text file in UTF-8"):
        read_jobs(tmp_path)
