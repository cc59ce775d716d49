"""The error of a failed job: the exception, and its place in the user's code."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.tracer.protocol.job_result import Result


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that gives the error of a script with this source and name."""
    monkeypatch.chdir(tmp_path)

    def run(source: str, name: str = "train.py") -> str:
        result = Result("ok")
        try:
            exec(compile(source, str(tmp_path / name), "exec"), {"json": json, "argparse": argparse})
        except BaseException as error:
            at = error.__traceback__
            result.fail(error.with_traceback(at.tb_next if at is not None else None))  # without this file's frame
        assert (result.status, result.error) == ("error", "JobError")
        return result.message

    return run


def test_names_line_of_script(failed: Callable[..., str]) -> None:
    assert failed("def main():\n    raise ValueError('no data')\nmain()") == "raised ValueError: no data (train.py:2, in main)"


def test_does_not_blame_library(failed: Callable[..., str]) -> None:
    said = failed("\n\njson.loads('[')", "data/load.py")
    assert said.startswith("raised JSONDecodeError: ")
    assert said.endswith(" (data/load.py:3, in <module>)")


def test_names_last_library_without_user_code(failed: Callable[..., str]) -> None:
    said = failed("def f():\n    1 / 0\nf()", "lib/python3/site-packages/package/core.py")
    assert said == "raised ZeroDivisionError: division by zero (lib/python3/site-packages/package/core.py:2, in f)"


def test_reports_scripts_own_exit(failed: Callable[..., str]) -> None:
    assert failed("raise SystemExit(2)") == "ended with exit code 2 (train.py:1, in <module>)"
    assert failed("raise SystemExit('no data')") == "raised SystemExit: no data (train.py:1, in <module>)"
    assert failed("argparse.ArgumentParser().parse_args(['--x'])").startswith("ended with exit code 2 (train.py:1")


def test_message_is_one_bounded_line(failed: Callable[..., str]) -> None:
    assert failed("raise RuntimeError('nvcc failed:\\n\\n  no such file\\n')") == (
        "raised RuntimeError: nvcc failed: no such file (train.py:1, in <module>)"
    )
    said = failed("raise RuntimeError('line\\n' * 10_000)")
    assert "\n" not in said
    assert len(said) < 800
    assert said.endswith("(train.py:1, in <module>)")
