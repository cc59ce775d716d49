"""The card below the allocator: how much memory it has, and at which addresses the driver hands it out.

Best fit breaks ties by address, so that the driver's choice can move the peak. It is a rule of its own here:

    lowest      the lowest free range which fits: freed addresses come back (the null GPU does the same)
    fresh       always above everything before: no address ever comes back
    descending  the highest free range which fits, growing downwards
"""

from __future__ import annotations

import bisect
from typing import Final, Literal, get_args

from vramcast.errors import UsageError

PAGE_BYTES: Final = 2 << 20  # spec: CUDA driver API, cuMemGetAllocationGranularity on current GPUs: memory comes in 2 MiB pages
UNLIMITED_BYTES: Final = 1 << 44  # arbitrary: 16 TiB, a card without an end
_BASE: Final = 1 << 46  # arbitrary: where addresses begin; PyTorch never looks at them, only compares them
_SPAN: Final = 1 << 60  # arbitrary: how far they go

AddressPolicy = Literal["lowest", "fresh", "descending"]


class Card:
    """A card on which one process runs, and its free address ranges; sizes in bytes.

    Args:
        total_bytes: What the driver calls the card's size; expandable segments reserve addresses for 9/8 of it, and a
            memory fraction is a share of it.
        context_bytes: What of it is gone before the first segment.
        limited: Whether the card ends there; without, it has no end (what a job would need).
        policy: Which free address range a new segment gets.
    """

    def __init__(
        self,
        total_bytes: int = UNLIMITED_BYTES,
        context_bytes: int = 0,
        *,
        limited: bool = True,
        policy: AddressPolicy = "lowest",
    ) -> None:
        if policy not in get_args(AddressPolicy):
            raise UsageError(f"Address policy '{policy}' is unknown: use one of {', '.join(get_args(AddressPolicy))}.")
        self.total_bytes = total_bytes
        self.context_bytes = context_bytes
        self.limited = limited
        self.policy = policy
        self.used_bytes = 0
        # Free ranges, sorted by address, no two of them touching.
        self._starts = [_BASE]
        self._sizes = [_SPAN]

    @property
    def capacity_bytes(self) -> int:
        """What there is for segments."""
        return self.total_bytes - self.context_bytes if self.limited else UNLIMITED_BYTES

    @property
    def free_bytes(self) -> int:
        """What the driver says is free."""
        return max(self.total_bytes - self.context_bytes - self.used_bytes, 0)

    def malloc(self, size_bytes: int) -> int | None:
        """Return the address of `size_bytes` of new memory, or None when the card is full."""
        if not self.charge(size_bytes):
            return None
        return self.reserve(size_bytes)

    def free(self, address: int, size_bytes: int) -> None:
        """Take back what `malloc` gave."""
        self.refund(size_bytes)
        self.release(address, size_bytes)

    def charge(self, size_bytes: int) -> bool:
        """Take physical memory without an address; whether there was enough."""
        pages_bytes = _pages(size_bytes)
        if self.used_bytes + pages_bytes > self.capacity_bytes:
            return False
        self.used_bytes += pages_bytes
        return True

    def take(self, size_bytes: int) -> bool:
        """Take memory for something beside the allocator; whether there was enough."""
        if self.used_bytes + size_bytes > self.capacity_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def refund(self, size_bytes: int) -> None:
        """Take physical memory back."""
        self.used_bytes -= _pages(size_bytes)

    def reserve(self, size_bytes: int) -> int:
        """Return an address range without memory behind it."""
        wanted = _pages(size_bytes)
        starts, sizes = self._starts, self._sizes
        if self.policy == "lowest":
            at = next(i for i, size in enumerate(sizes) if size >= wanted)
        elif self.policy == "fresh":
            at = len(starts) - 1
        else:
            at = next(i for i in reversed(range(len(sizes))) if sizes[i] >= wanted)
            sizes[at] -= wanted
            address = starts[at] + sizes[at]
            if not sizes[at]:
                del starts[at], sizes[at]
            return address
        address = starts[at]
        starts[at] += wanted
        sizes[at] -= wanted
        if not sizes[at]:
            del starts[at], sizes[at]
        return address

    def release(self, address: int, size_bytes: int) -> None:
        """Take an address range back; it joins its free neighbours."""
        if self.policy == "fresh":
            return
        size = _pages(size_bytes)
        starts, sizes = self._starts, self._sizes
        at = bisect.bisect(starts, address)
        if at < len(starts) and address + size == starts[at]:
            size += sizes.pop(at)
            del starts[at]
        if at and starts[at - 1] + sizes[at - 1] == address:
            sizes[at - 1] += size
        else:
            starts.insert(at, address)
            sizes.insert(at, size)


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
