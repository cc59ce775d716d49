"""Another release of a job's packages: it comes first on the job's import path, or the answer says what is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vramcast.hardware.cards import device
from vramcast.hardware.stack import parse
from vramcast.jobs import other_packages
from vramcast.jobs.text import JobText


def test_folder_with_the_release_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new" / "transformers-4.51.3.dist-info").mkdir(parents=True)
    (tmp_path / "old" / "transformers-4.40.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv(other_packages.VARIABLE, os.pathsep.join([str(tmp_path / "old"), str(tmp_path / "new")]))
    job = JobText(command=("python", "-c", "1"), stack="transformers==4.51.3").job(device("t4"))
    assert job.search_path[0] == str(tmp_path / "new")
    assert [*other_packages.remarks(job.stack)] == []


def test_without_such_a_folder_the_answer_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_packages, "_installed", lambda: "5.17.0")
    plain = JobText(command=("python", "-c", "1")).job(device("t4"))
    job = JobText(command=("python", "-c", "1"), stack="transformers==4.51.3").job(device("t4"))
    assert job.search_path == plain.search_path
    (said,) = other_packages.remarks(job.stack)
    assert said.startswith("transformers 5.17.0 ran the job, but its stack has 4.51.3")
    assert "pip install --target FOLDER transformers==4.51.3, and set VRAMCAST_PACKAGES=FOLDER" in said


@pytest.mark.parametrize("named", ["torch==2.8.0", "transformers==5.17.0"])
def test_the_installed_release_needs_nothing(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setattr(other_packages, "_installed", lambda: "5.17.0")
    assert [*other_packages.remarks(parse(named))] == []
    assert [*other_packages.remarks(None)] == []
