"""The allocator's own history and statistics of one job, from its first use of CUDA, protected from the job's resets.

A script that prints its peaks resets them at each epoch; one that profiles itself begins and ends the history. Both work as
usual, and the records here are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from vramcast.tracer.format.snapshot import Entries
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.replacement import ReplacedAttribute

_MAX_EVENTS: Final = 50_000_000  # arbitrary: most entries of the history; about 5 GB
# Values read from torch.cuda.memory_stats(), by our name; the first three are peaks, the others sums.
_PEAKS: Final = {
    "allocated": "allocated_bytes.all.peak",
    "reserved": "reserved_bytes.all.peak",
    "requested": "requested_bytes.all.peak",
}
_SUMS: Final = {"retries": "num_alloc_retries", "ooms": "num_ooms"}


class Account:
    """The history and statistics from `begin` to `end`.

    Args:
        device_index: Index of the card in this machine.
        stacks: Whether to keep the Python stack of each live block.

    Attributes:
        emptied: Places in the history at which the cache was emptied, which the history itself does not record.
        earlier: Parts of the history already removed from torch's, where an entry takes about a kilobyte when it is read.
    """

    def __init__(self, device_index: int = 0, *, stacks: bool = False) -> None:
        self._device = device_index
        self._kept: dict[str, Any] = {"context": "state" if stacks else None, "max_entries": _MAX_EVENTS}
        if stacks:
            self._kept["stacks"] = "python"
        self.emptied: list[int] = []
        self.earlier: list[Entries] = []
        self._replaced: list[ReplacedAttribute] = []
        self._snapshot: Callable[[], dict[str, Any]] = torch_api.memory_snapshot  # before it is replaced
        self._has_begun = False
        self._can_clear = True
        self._origin = 0
        self._peaks = dict.fromkeys(_PEAKS, 0)
        self._sums = dict.fromkeys(_SUMS, 0)

    def begin_when_touched(self) -> None:
        """Begin at the first use of CUDA; now if CUDA is in use."""
        torch_api.lazy_call(self._begin)

    def _begin(self) -> None:
        self._record(**self._kept)
        self._origin = _events(self._device)
        self._has_begun = True
        self._replace()

    def _replace(self) -> None:
        """Replace the functions that the job itself calls."""
        wrap = {
            "empty_cache": self._noting, "reset_statistics": self._keeping, "record_memory_history": _ignoring,
            "memory_snapshot": self._whole,
        }  # fmt: skip
        self._replaced = [ReplacedAttribute(*place, wrap[what]) for what in wrap for place in torch_api.places(what)]

    def _put_back(self) -> None:
        for place in self._replaced:
            place.remove()

    def _record(self, **options: Any) -> None:
        """Begin the history; the functions that the job calls are restored meanwhile."""
        self._put_back()
        try:
            torch_api.record_memory_history(**options)
        finally:
            if self._replaced:
                self._replace()

    def position(self) -> int:
        """Return the number of requests and frees so far."""
        return _events(self._device) - self._origin if self._has_begun else 0

    def drain(self) -> None:
        """Remove the history so far; not while another thread (NCCL's watchdog) frees, because those frees would be lost."""
        if not self._has_begun or not self._can_clear:
            return
        before = _events(self._device)
        histories = self._snapshot()["device_traces"]
        if _events(self._device) != before:
            return
        try:
            self._record(**self._kept, clear_history=True)
        except TypeError:  # torch 2.6 never clears it: everything is read at the end
            self._can_clear = False
            return
        self.earlier.append(Entries.of(histories[self._device] if histories else (), self._device))  # takes seconds

    def live_stacks(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield the address of each live block, and the stack that allocated it, innermost frame first."""
        if not self._has_begun:
            return
        for segment in self._snapshot()["segments"]:
            if segment["device"] == self._device:
                for block in segment["blocks"]:
                    if block["state"] == "active_allocated":
                        yield block["address"], block.get("frames", [])

    def _whole(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that gives a script its own snapshot, including the parts of the history removed before."""

        def snapshot(*arguments: Any, **named: Any) -> Any:
            found = original(*arguments, **named)
            if self.earlier and found["device_traces"]:
                before = [entry for part in self.earlier for entry in part.to_dicts()]
                found["device_traces"][self._device] = [*before, *found["device_traces"][self._device]]
            return found

        return snapshot

    def end(self) -> dict[str, Any]:
        """End the recording and return torch's snapshot of it."""
        if not self._has_begun and torch.cuda.device_count() == 0:  # a job that has hidden the card from itself
            return {"segments": [], "device_traces": [[]]}
        if not self._has_begun:  # a job without CUDA
            torch.cuda.init()  # type: ignore[no-untyped-call]
        self._keep()
        self._put_back()
        snapshot: dict[str, Any] = self._snapshot()
        torch_api.record_memory_history(enabled=None)
        return snapshot

    def live_bytes(self) -> int:
        """Return the bytes currently allocated; 0 before CUDA is touched."""
        return torch.cuda.memory_allocated(self._device) if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]

    def totals(self) -> tuple[int, int, int, int]:
        """Return the number of requests and frees, the bytes of all requests, the live ones, and the reserved bytes."""
        if not self._has_begun:
            return 0, 0, 0, 0
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        requested, reserved = stats["requested_bytes"]["all"], stats["reserved_bytes"]["all"]
        return self.position(), int(requested["allocated"]), int(requested["current"]), int(reserved["current"])

    def peaks(self) -> dict[str, int]:
        """Return the peaks over the whole job in bytes, and the allocator's counts of retries and failures."""
        return {**self._peaks, **self._sums}

    def _keep(self) -> None:
        stats = torch.cuda.memory_stats(self._device)
        for name, key in _PEAKS.items():
            self._peaks[name] = max(self._peaks[name], int(stats.get(key, 0)))
        for name, key in _SUMS.items():
            self._sums[name] += int(stats.get(key, 0))

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def empty_cache(*arguments: Any) -> Any:
            self.emptied.append(self.position())
            return original(*arguments)

        return empty_cache

    def _keeping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reset(*arguments: Any) -> Any:
            at = self.position()
            self._keep()
            result = original(*arguments)
            stats = torch.cuda.memory_stats(self._device)
            for name, key in _SUMS.items():
                self._sums[name] -= int(stats.get(key, 0))  # sums unchanged by this reset are counted again at the end
            self._origin = _events(self._device) - at
            return result

        return reset


def _ignoring(original: Callable[..., Any]) -> Callable[..., None]:
    """Return a replacement for the function that begins and ends the history: it is on, and stays on."""

    def ignored(*arguments: Any, **named: Any) -> None:
        pass

    return ignored


def _events(device: int) -> int:
    counts = torch.cuda.memory_stats_as_nested_dict(device).get("allocation", {}).get("all", {})
    return int(counts.get("allocated", 0) + counts.get("freed", 0))
