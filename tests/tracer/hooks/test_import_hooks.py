"""What is done when a module is imported."""

from __future__ import annotations

import sys

import pytest

from vramcast.tracer.hooks.replacement import when_imported

MODULE = "this"  # says a poem when it is imported


def test_it_is_done_once_the_module_is_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    done: list[bool] = []
    hooks = list(sys.meta_path)
    with when_imported(MODULE, lambda: done.append(MODULE in sys.modules)):
        assert not done
        __import__(MODULE)
        assert done == [True]
    assert capsys.readouterr().out.startswith("The Zen")
    with when_imported(MODULE, lambda: done.append(True)):
        assert done == [True, True]
    monkeypatch.delitem(sys.modules, MODULE)
    with when_imported(MODULE, done.clear):
        pass
    assert sys.meta_path == hooks
    assert done
