"""Actions at the import of a module."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from vramcast.tracer.hooks.replacement import when_imported

MODULE = "this"  # prints a poem when it is imported


def test_acts_once_module_is_imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    done: list[bool] = []
    hooks = list(sys.meta_path)
    with when_imported(MODULE, lambda: done.append(MODULE in sys.modules)):
        assert importlib.util.find_spec(MODULE)  # as vLLM 0.33 looks for torch
        assert not done
        __import__(MODULE)
        assert done == [True]
    assert capsys.readouterr().out.startswith("The Zen")
    with when_imported(MODULE, lambda: done.append(True)):
        assert done == [True, True]
    del sys.modules[MODULE]  # not by monkeypatch, which would bring it back for the tests that follow
    with when_imported(MODULE, done.clear):
        pass
    assert sys.meta_path == hooks
    assert done
