"""Parts of the allocator's history removed while a job runs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from vramcast.tracer.recording import allocator_history
from vramcast.tracer.recording.allocator_history import Account


@pytest.mark.parametrize("frees", [0, 1])
def test_concurrent_frees_are_not_lost(monkeypatch: pytest.MonkeyPatch, frees: int) -> None:
    counted = [10]
    cleared: list[dict[str, Any]] = []
    ours = Account()

    def snapshot() -> dict[str, Any]:
        counted[0] += frees
        return {"device_traces": [[]]}

    monkeypatch.setattr(allocator_history, "_events", lambda device: counted[0])
    monkeypatch.setattr(ours, "_snapshot", snapshot)
    monkeypatch.setattr(ours, "_record", lambda **options: cleared.append(options))
    monkeypatch.setattr(ours, "_has_begun", True)
    ours.drain()
    assert (len(ours.earlier), len(cleared)) == ((0, 0) if frees else (1, 1))  # otherwise the next step tries again


def test_unclearable_history_stays_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Account()
    read = []

    def record(**options: Any) -> None:
        raise TypeError("unexpected keyword argument 'clear_history'")  # torch 2.6

    def snapshot() -> dict[str, Any]:
        read.append(1)
        return {"device_traces": [[]]}

    monkeypatch.setattr(allocator_history, "_events", lambda device: 10)
    monkeypatch.setattr(ours, "_snapshot", snapshot)
    monkeypatch.setattr(ours, "_record", record)
    monkeypatch.setattr(ours, "_has_begun", True)
    ours.drain()
    ours.drain()
    assert (ours.earlier, read) == ([], [1])  # otherwise every earlier event would appear twice
