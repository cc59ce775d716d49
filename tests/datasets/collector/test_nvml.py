from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from vramcast.datasets.collector.nvml import Nvml, NvmlAbsent, Sampler, Window

Card = Callable[..., None]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_reads_use_processes_and_driver(card: Card) -> None:
    card(5000, {7: 1000, 8: 2000, 9: 2**64 - 1})
    nvml = Nvml("some-uuid")
    assert nvml.used_bytes() == 5000
    assert nvml.by_process() == {7: 1000, 8: 2000}  # the driver reports the third as not available
    assert nvml.driver() == "580.0.1"


def test_reports_missing_library_card_or_driver(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NvmlAbsent, match="nvmlInit_v2 failed with code 9"):
        Nvml()
    card(1)
    with pytest.raises(NvmlAbsent, match="ByUUID failed with code 6"):
        Nvml("unknown")
    monkeypatch.setenv("VRAMCAST_NVML", "libnot-there.so")
    with pytest.raises(NvmlAbsent, match="cannot be used here"):
        Nvml()


def test_window_has_peaks_of_its_processes(card: Card) -> None:
    card(100, {7: 100})
    with Sampler(Nvml(), interval_ms=1) as sampler:
        window = sampler.open()
        for used, mine in ((400, 300), (900, 800), (600, 500)):
            card(used, {7: 100, 42: mine})
            seen = window.samples
            wait_for(lambda seen=seen: window.samples >= seen + 2)  # type: ignore[misc]
        sampler.close(window)
        card(5000, {42: 5000})
        other = sampler.open()
        wait_for(lambda: other.samples > 2)
    assert (window.before_bytes, window.device_bytes, window.by_process) == (100, 900, {42: 800})
    assert other.by_process == {}
    assert sampler.period_ms is not None


@pytest.mark.parametrize(
    ("by_process", "pids", "alone", "expected"),
    [
        ({42: 800}, {42}, False, (800, "nvml process")),
        ({42: 800, 43: 100}, {42, 43}, False, (900, "nvml processes, sum of their peaks")),
        ({9000: 800}, {42}, True, (800, "nvml process")),  # in a container, under another id
        ({9000: 800}, {42}, False, (None, "torch counters only")),  # or another job's
        ({}, {42}, True, (850, "nvml device minus before")),
        ({1: 5, 2: 6}, {42}, True, (850, "nvml device minus before")),
        ({}, {42}, False, (None, "torch counters only")),
    ],
)
def test_process_peak_is_own_or_unknown(
    by_process: dict[int, int], pids: set[int], alone: bool, expected: tuple[int | None, str]
) -> None:
    window = Window(50, frozenset(), device_bytes=900, by_process=by_process, samples=3)
    assert window.process_bytes(pids, alone=alone) == expected


def test_failed_sample_does_not_stop_sampling(card: Card, tmp_path_factory: pytest.TempPathFactory) -> None:
    card(100)
    nvml = Nvml()
    with Sampler(nvml, interval_ms=1) as sampler:
        window = sampler.open()
        wait_for(lambda: window.samples > 1)
        failures: list[int] = []
        works = nvml.used_bytes

        def fails() -> int:
            failures.append(1)
            raise NvmlAbsent("code 999")

        nvml.used_bytes = fails  # type: ignore[method-assign]
        wait_for(lambda: len(failures) > 2)
        nvml.used_bytes = works  # type: ignore[method-assign]
        card(700)
        wait_for(lambda: window.device_bytes == 700)
