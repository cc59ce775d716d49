"""The answers which a tracer without C code keeps for the next reads of its card, as `nullgpu_know` does in the null GPU."""

from __future__ import annotations

from collections import deque


class Known:
    """What the next reads give; one whose size does not match the next answer is not known."""

    def __init__(self) -> None:
        self._reads: deque[bytes] = deque()

    def know(self, reads: list[bytes]) -> int:
        """Say what the next reads give; return how many answers of the last call nobody took."""
        untaken = len(self._reads)
        self._reads = deque(reads)
        return untaken

    def take(self, size_bytes: int) -> bytes | None:
        """Return the answer of a read of so many bytes, or None."""
        return self._reads.popleft() if self._reads and len(self._reads[0]) == size_bytes else None
