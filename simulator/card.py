"""The card below the allocator: its memory, and the addresses that the driver hands out.

Best fit breaks ties by address, so the driver's choice of addresses can move the peak. Each platform has its own rule:

    linux    addresses come in chunks of a multiple of 32 MiB, from above: a new chunk lies in the highest gap that fits. The
             rest of a chunk serves later requests: the newest chunk first, and the lowest place in it. An empty chunk is
             released (the null GPU does the same)
    windows  one chunk: the lowest free range that fits

Evidence: `python -m benchmarks.simulator.addresses`, docs/simulator.md.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Final, Literal, get_args

from vramcast.core.errors import UsageError

PAGE_BYTES: Final = 2 << 20  # spec: CUDA driver API, cuMemGetAllocationGranularity on current GPUs: memory comes in 2 MiB pages
UNLIMITED_BYTES: Final = 1 << 44  # arbitrary: 16 TiB, an unlimited card
BASE: Final = 1 << 46  # arbitrary: the lowest address; PyTorch only compares addresses
SPAN: Final = 1 << 60  # arbitrary: the size of the address space
CHUNK_BYTES: Final = 32 << 20  # measured: public histories of Linux (benchmarks.simulator.addresses)

AddressPolicy = Literal["linux", "windows"]


@dataclass(slots=True)
class _Range:
    """Addresses of one chunk, taken or free; no two free ranges of a chunk touch. Chunks are numbered from 1, oldest first."""

    address: int
    size_bytes: int
    chunk: int
    is_free: bool = True


class Card:
    """The card of one process, with its free address ranges; sizes in bytes.

    Args:
        total_bytes: Size that the driver reports; expandable segments reserve addresses for 9/8 of it, and a memory
            fraction is a share of it.
        context_bytes: Bytes taken before the first segment.
        limited: Whether allocations beyond `total_bytes` fail; if False, the card has no end (for the memory a job needs).
        policy: How the driver chooses addresses: `linux` or `windows`.

    Raises:
        UsageError: The policy is unknown.

    Example:
        >>> card = vramcast.Card(8 << 20, context_bytes=2 << 20)
        >>> address = card.malloc(3 << 20)  # 3 MiB take two pages of 2 MiB
        >>> card.free_bytes, card.malloc(4 << 20)
        (2097152, None)
    """

    def __init__(
        self,
        total_bytes: int = UNLIMITED_BYTES,
        context_bytes: int = 0,
        *,
        limited: bool = True,
        policy: AddressPolicy = "linux",
    ) -> None:
        if policy not in get_args(AddressPolicy):
            raise UsageError(f"Address policy '{policy}' is unknown: use one of {', '.join(get_args(AddressPolicy))}.")
        self.total_bytes = total_bytes
        self.context_bytes = context_bytes
        self.limited = limited
        self.policy = policy
        self.used_bytes = 0
        self._chunk_bytes = CHUNK_BYTES if policy == "linux" else SPAN
        self._n_chunks = 0
        self._ranges: list[_Range] = []  # by address; they cover all chunks

    @property
    def capacity_bytes(self) -> int:
        """Return the bytes available to segments."""
        return self.total_bytes - self.context_bytes if self.limited else UNLIMITED_BYTES

    @property
    def free_bytes(self) -> int:
        """Return the free bytes that the driver reports."""
        return max(self.total_bytes - self.context_bytes - self.used_bytes, 0)

    def malloc(self, size_bytes: int) -> int | None:
        """Return the address of `size_bytes` of new memory, or None when the card is full.

        Args:
            size_bytes: Bytes, rounded up to pages of 2 MiB.

        Returns:
            The address; None when the card is full.
        """
        if not self.charge(size_bytes):
            return None
        return self.reserve(size_bytes)

    def free(self, address: int, size_bytes: int) -> None:
        """Take back memory from `malloc`.

        Args:
            address: The address that `malloc` returned.
            size_bytes: The bytes requested there.
        """
        self.refund(size_bytes)
        self.release(address)

    def charge(self, size_bytes: int) -> bool:
        """Take physical memory without an address; return whether there was enough.

        Args:
            size_bytes: Bytes, rounded up to pages of 2 MiB.

        Returns:
            Whether there was enough; if not, nothing is taken.
        """
        return self.take(_pages(size_bytes))

    def take(self, size_bytes: int) -> bool:
        """Take memory for something other than the allocator; return whether there was enough.

        Args:
            size_bytes: Bytes, not rounded.

        Returns:
            Whether there was enough; if not, nothing is taken.
        """
        if self.used_bytes + size_bytes > self.capacity_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def refund(self, size_bytes: int) -> None:
        """Take physical memory back.

        Args:
            size_bytes: Bytes that `charge` took, rounded up to pages of 2 MiB.
        """
        self.used_bytes -= _pages(size_bytes)

    def reserve(self, size_bytes: int) -> int:
        """Return an address range without memory behind it.

        Args:
            size_bytes: Bytes, rounded up to pages of 2 MiB.

        Returns:
            The first address of the range.
        """
        wanted, ranges = _pages(size_bytes), self._ranges
        fitting = [i for i, one in enumerate(ranges) if one.is_free and one.size_bytes >= wanted]
        at = max(fitting, key=lambda i: (ranges[i].chunk, -i)) if fitting else self._open_chunk(wanted)
        found = ranges[at]
        if found.size_bytes > wanted:
            ranges.insert(at + 1, _Range(found.address + wanted, found.size_bytes - wanted, found.chunk))
        found.size_bytes, found.is_free = wanted, False
        return found.address

    def _open_chunk(self, wanted: int) -> int:
        """Put a chunk into the highest gap that fits; return the index of its only range."""
        ranges, at, end = self._ranges, len(self._ranges), BASE + SPAN
        size_bytes = -(-wanted // self._chunk_bytes) * self._chunk_bytes
        while at and end - (ranges[at - 1].address + ranges[at - 1].size_bytes) < size_bytes:
            at -= 1
            end = ranges[at].address
        self._n_chunks += 1
        ranges.insert(at, _Range(end - size_bytes, size_bytes, self._n_chunks))
        return at

    def release(self, address: int) -> None:
        """Take back an address range of `reserve`; merge it with its free neighbors in the same chunk.

        Args:
            address: The address that `reserve` returned.
        """
        ranges = self._ranges
        at = bisect.bisect_left(ranges, address, key=lambda one: one.address)
        ranges[at].is_free = True
        for left in (at, at - 1):
            if self._is_one_chunk(left) and ranges[left].is_free and ranges[left + 1].is_free:
                ranges[left].size_bytes += ranges[left + 1].size_bytes
                del ranges[left + 1]
                at = left
        if not self._is_one_chunk(at - 1) and not self._is_one_chunk(at):  # the chunk is empty
            del ranges[at]

    def _is_one_chunk(self, left: int) -> bool:
        ranges = self._ranges
        return 0 <= left < len(ranges) - 1 and ranges[left].chunk == ranges[left + 1].chunk


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
