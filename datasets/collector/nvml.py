"""NVIDIA's management library, the part for a memory sampler: used bytes of one card, in total and by process.

It is called through ctypes, so that nothing has to be installed on the measuring machine. If it is absent (no driver, a
null GPU), the collector uses only torch's counters and reports that. Source: nvml.h, NVML API reference, "Device Queries".
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
COUNTERS_ONLY = "torch counters only"  # the value of `how` without a process peak
_NOT_AVAILABLE = 2**64 - 1  # spec: NVML_VALUE_NOT_AVAILABLE
_MOST_PROCESSES = 256  # arbitrary: more jobs than share any card


class NvmlAbsent(Exception):
    """NVML cannot be used here; the text gives the reason."""


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Nvml:
    """One card.

    Args:
        uuid: torch's `get_device_properties(0).uuid` as text; None takes the first card that NVML lists.
    Raises:
        NvmlAbsent: There is no library, or no such card.
    """

    def __init__(self, uuid: str | None = None) -> None:
        try:
            self._library = ctypes.CDLL(os.environ.get("VRAMCAST_NVML", LIBRARY))
            self._call("nvmlInit_v2")
            self._device = ctypes.c_void_p()
            if uuid is None:
                self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(self._device))
            else:
                self._call("nvmlDeviceGetHandleByUUID", f"GPU-{uuid.removeprefix('GPU-')}".encode(), ctypes.byref(self._device))
        except (OSError, AttributeError) as error:
            raise NvmlAbsent(f"NVML cannot be used here ({error})") from None

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise NvmlAbsent(f"NVML's {name} failed with code {code}")

    def used_bytes(self) -> int:
        """Return the memory in use on the card, by all processes."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(memory))
        return int(memory.used)

    def by_process(self) -> dict[int, int]:
        """Return the bytes of each process that computes on the card; empty if the driver does not list them (containers)."""
        count = ctypes.c_uint(_MOST_PROCESSES)
        entries = (_Process * _MOST_PROCESSES)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", self._device, ctypes.byref(count), entries)
        return {int(e.pid): int(e.used) for e in entries[: count.value] if e.used != _NOT_AVAILABLE}

    def driver(self) -> str:
        """Return the driver's version."""
        text = ctypes.create_string_buffer(96)  # spec: NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE is 80
        self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text)))
        return text.value.decode()


@dataclass(slots=True)
class Window:
    """The observations of the sampler between `open` and `close`.

    Attributes:
        before_bytes: The card's use when it was opened.
        device_bytes: The card's highest use.
        by_process: Highest use of each process that was not there before.
        samples: Number of samples.
    """

    before_bytes: int
    before_pids: frozenset[int]
    device_bytes: int = 0
    by_process: dict[int, int] = field(default_factory=dict)
    samples: int = 0

    def process_bytes(self, pids: set[int], *, alone: bool) -> tuple[int | None, str]:
        """Return the peak of processes `pids`, and how it was measured.

        In a container the driver's process ids differ from ours. A job with the card to itself is then the only new
        process; if the driver lists none, it is the increase in the card's use.
        """
        seen = [self.by_process[pid] for pid in pids & self.by_process.keys()]
        if seen:
            # Peaks of several processes need not coincide: their sum is an upper bound.
            return sum(seen), "nvml process" if len(seen) == 1 else "nvml processes, sum of their peaks"
        if alone and len(self.by_process) == 1:
            return next(iter(self.by_process.values())), "nvml process"
        if alone and self.samples and self.device_bytes > self.before_bytes:
            return self.device_bytes - self.before_bytes, "nvml device minus before"
        return None, COUNTERS_ONLY


def observed(window: Window | None, pid: int, *, alone: bool) -> tuple[dict[str, Any], str]:
    """Return the fields of `Measurement` from a closed window for the job `pid`, and how its process peak was measured.

    Args:
        window: None: there was no sampler, and nothing is known.
        pid: 0: the job's process is unknown.
        alone: Whether the job had the card to itself.
    """
    if window is None:
        return {}, COUNTERS_ONLY
    process_bytes, how = window.process_bytes({pid}, alone=alone)
    return {
        "process_bytes": process_bytes or None,
        "device_bytes": window.device_bytes or None,
        "samples": window.samples,
    }, how


def sampling(uuid: str | None, interval_ms: float, say: Callable[[str], None]) -> AbstractContextManager[Sampler | None]:
    """Return a sampler of a card; None, after a message with the reason, if NVML is absent."""
    try:
        return Sampler(Nvml(uuid), interval_ms)
    except NvmlAbsent as error:
        say(f"{error}: only torch's counters are measured, not the process peak.")
        return nullcontext(None)


class Sampler:
    """A thread that samples NVML repeatedly; any number of windows may be open at once.

    Args:
        nvml: The card.
        interval_ms: Requested time between two samples; the passport's `interval_ms` is the actual one.
    """

    def __init__(self, nvml: Nvml, interval_ms: float = 5.0) -> None:
        self._nvml = nvml
        self._interval_s = interval_ms / 1000
        self._lock = threading.Lock()
        self._windows: list[Window] = []
        self._stop = threading.Event()
        self._samples = 0
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def open(self) -> Window:
        """Return a window that observes from now on."""
        window = Window(self._nvml.used_bytes(), frozenset(self._nvml.by_process()))
        with self._lock:
            self._windows.append(window)
        return window

    def close(self, window: Window) -> None:
        """End a window."""
        with self._lock:
            self._windows.remove(window)

    @property
    def period_ms(self) -> float | None:
        """The mean time between two samples so far; None before the second."""
        return 1000 * self._seconds / self._samples if self._samples else None

    def _loop(self) -> None:
        last = time.perf_counter()
        while not self._stop.wait(self._interval_s):
            with self._lock:
                watched = bool(self._windows)
            if watched:
                self._sample()
            now = time.perf_counter()
            if watched:
                self._samples += 1
                self._seconds += now - last
            last = now

    def _sample(self) -> None:
        try:
            used, processes = self._nvml.used_bytes(), self._nvml.by_process()
        except NvmlAbsent:  # one failed call must not end the sampling; the number of samples shows it
            return
        with self._lock:
            for window in self._windows:
                window.samples += 1
                window.device_bytes = max(window.device_bytes, used)
                for pid, size_bytes in processes.items():
                    if pid not in window.before_pids:
                        window.by_process[pid] = max(window.by_process.get(pid, 0), size_bytes)
