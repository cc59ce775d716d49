"""The user's own frame of a stack."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from vramcast.tracer.protocol import source_places
from vramcast.tracer.protocol.source_places import SourceLine, is_library, users_place

_OURS = str(Path(source_places.__file__).parents[1] / "program" / "loops.py")
_TORCH = "/v/lib/python3.11/site-packages/torch/nn/functional.py"
_COMPILED = "/tmp/torchinductor_me/ab/cabx.py"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([_TORCH, "/me/model.py", "/me/train.py"], "/me/model.py:2"),
        ([_COMPILED, _TORCH, "/me/train.py"], "/me/train.py:3"),
        ([_OURS, "<string>"], "<string>:2"),  # python -c
        ([_OURS, _TORCH, os.__file__], f"{_TORCH}:2"),  # the user runs a package
        ([_OURS], None),
        ([], None),
    ],
)
def test_innermost_frame_outside_libraries(files: list[str], expected: str | None) -> None:
    found = users_place(SourceLine(file, line, "f") for line, file in enumerate(files, 1))
    assert (found and str(found)) == expected


def test_place_is_relative_to_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(SourceLine(str(tmp_path / "src" / "train.py"), 41, "main")) == "src/train.py:41"


def test_folder_that_pip_filled_holds_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("script", "target"):
        (tmp_path / folder / "trl-1.16.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path / "script"), str(tmp_path / "target"), "", *sys.path])
    assert is_library(str(tmp_path / "target" / "trl" / "trainer.py"))
    assert not is_library(str(tmp_path / "script" / "train.py"))  # the script's own folder
    assert not is_library(str(tmp_path / "targets" / "train.py"))
