"""The context of a machine's card: readings before and after kernels, with replacements of NVML and torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from vramcast.core.units import MIB
from vramcast.datasets.collector import context_probe
from vramcast.datasets.collector.nvml import Nvml, NvmlAbsent

Card = Callable[..., None]
MINE = 42


class FakeWork:
    """A process whose context is `bare`, then `after`, plus the memory reserved by its allocator."""

    def __init__(self, card: Card, bare: int, after: int, *, pid: int | None = MINE, failed: Mapping[str, str] | None = None):
        self._card, self._sizes, self._pid, self._failed = card, [bare, after], pid, failed or {}
        self._reserved = 0

    def _take(self, context: int, reserved: int) -> None:
        self._reserved = reserved
        size = context + reserved
        self._card(100 * MIB + size, {7: 100 * MIB} | ({self._pid: size} if self._pid is not None else {}))

    def start(self) -> None:
        self._take(self._sizes[0], 0)

    def launch(self) -> Mapping[str, str]:
        self._take(self._sizes[1], 22 * MIB)
        return self._failed

    def reserved_bytes(self) -> int:
        return self._reserved


def measured(nvml: Nvml, work: FakeWork) -> dict[str, Any]:
    """Return the measurement of a process that does this work."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("start", "launch", "reserved_bytes"):
            patch.setattr(context_probe, f"_{name}", getattr(work, name))
        return context_probe.measured(nvml, MINE)


@pytest.fixture
def nvml(card: Card) -> Nvml:
    card(100 * MIB, {7: 100 * MIB})  # another process's
    return Nvml("some-uuid")


@pytest.mark.parametrize(
    ("pid", "how"), [(MINE, "nvml process"), (9000, "nvml process"), (None, "nvml device minus before")]
)  # in a container with another id, or not listed
def test_context_excludes_reserved_memory(nvml: Nvml, card: Card, pid: int | None, how: str) -> None:
    reply = measured(nvml, FakeWork(card, 384 * MIB, 470 * MIB, pid=pid, failed={"attention": "why"}))
    assert reply == {
        "bare_bytes": 384 * MIB, "kernels_bytes": 470 * MIB, "failed": {"attention": "why"}, "driver": "580.0.1", "how": how,
    }  # fmt: skip


@pytest.mark.parametrize(("bare", "after"), [(0, 470), (384, 300), (-90, 470)])
def test_rejects_impossible_context(nvml: Nvml, card: Card, bare: int, after: int) -> None:
    with pytest.raises(NvmlAbsent, match="let nothing else use the card"):
        measured(nvml, FakeWork(card, bare * MIB, after * MIB, pid=None))


def test_reports_missing_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "finds no GPU" in context_probe.run_job(None)["absent"]
    assert "finds no GPU" in context_probe.run_job("a-uuid")["absent"]


def test_reports_missing_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("VRAMCAST_NVML", "libnot-there.so")
    assert "NVML cannot be used here" in context_probe.run_job("a-uuid")["absent"]
    context_probe.warm_up()
