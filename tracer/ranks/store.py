"""A store of torch.distributed whose other clients are absent."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from typing import Any, Final

import torch

from vramcast.core.errors import MissingPeerValue
from vramcast.tracer.protocol.run_options import Tape

_ID_BYTES: Final = 128  # spec: nccl.h, NCCL_UNIQUE_ID_BYTES
_TIMEOUT: Final = timedelta(seconds=300)  # arbitrary: nobody ever waits
# spec: torch 2.6 to 2.11, ProcessGroupNCCL: ids stand behind the backend's name.
_OF_NCCL: Final = re.compile(r"cuda|nccl", re.IGNORECASE)
# spec: the same: under a number, or under the ranks of a point-to-point pair. A script's own keys may look so.
_NUMBERED: Final = re.compile(r"/\d+(:\d+)?$")

_distributed: Any = torch.distributed
_Store: Any = _distributed.Store if _distributed.is_available() else object


class AbsentStore(_Store):  # type: ignore[misc]
    """Stands for every store of a process: waits end at once, and what an absent rank would have set is told.

    A key of an absent rank has what the tape says, or what this rank set under its own number; the id of a communicator is
    zeros, as the null NCCL's are.

    Args:
        rank: Of this process.
        tape: What ranks said which ran before.
        answers: Counts what was answered for absent ranks.

    Attributes:
        said: What this rank set.
    """

    def __init__(self, rank: int, tape: Tape, answers: Counter[str]) -> None:
        super().__init__()
        self._rank, self._tape, self._answers = rank, tape, answers
        self._held: dict[str, bytes] = {}
        self.said: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """See `Store`."""
        self._held[key] = self.said[key] = _bytes(value)

    def get(self, key: str) -> bytes:
        """See `Store`.

        Raises:
            MissingPeerValue: an absent rank would have set the key, and nobody knows to what.
        """
        if key in self._held:
            return self._held[key]
        if key in self._tape.store:
            return self._tape.store[key]
        for number in re.finditer(r"\d+", key):  # what an absent rank sets under its number, we set under ours
            ours = f"{key[: number.start()]}{self._rank}{key[number.end() :]}"
            if ours in self._held:
                self._answers["keys of a store"] += 1
                return self._held[ours]
        if _OF_NCCL.search(key):
            return bytes(_ID_BYTES)
        if _NUMBERED.search(key):
            self._answers["keys of a store"] += 1
            return bytes(_ID_BYTES)
        raise MissingPeerValue(f"The key '{key}' of the store is set by a rank which is not traced: add it to --ranks.")

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """See `Store`."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """See `Store`."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """See `Store`."""
        return True

    def add(self, key: str, value: int) -> int:
        """See `Store`."""
        number = int(self._held.get(key, b"0")) + value
        self._held[key] = str(number).encode()
        return number

    def append(self, key: str, value: Any) -> None:
        """See `Store`."""
        self._held[key] = self._held.get(key, b"") + _bytes(value)

    def check(self, keys: list[str]) -> bool:
        """See `Store`."""
        return all(key in self._held for key in keys)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """See `Store`."""
        now = self._held.get(key)
        if now == _bytes(expected) or (now is None and not _bytes(expected)):
            self._held[key] = _bytes(desired)
        return self._held.get(key, _bytes(expected))

    def delete_key(self, key: str) -> bool:
        """See `Store`."""
        return self._held.pop(key, None) is not None

    def num_keys(self) -> int:
        """See `Store`."""
        return len(self._held)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return at once: who is absent has done its part."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Take note of nothing."""

    @property
    def timeout(self) -> timedelta:
        """See `Store`."""
        return _TIMEOUT

    def clone(self) -> AbsentStore:
        """Return itself."""
        return self


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
