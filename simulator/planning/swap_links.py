"""Links between a card and its host, and how long a copy over one takes: latency + bytes / bandwidth, in each direction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from vramcast.core.errors import UsageError

_REACHED: Final = 0.8  # arbitrary: what pinned copies reach of the line rate; the paper's fit is 0.84 out and 0.77 in
_LATENCY_US: Final = 10.0  # arbitrary: of one asynchronous copy; the paper's fit is 47.2 out and 9.7 in


@dataclass(frozen=True, slots=True)
class Link:
    """A link with one stream in each direction, which do not disturb each other.

    Attributes:
        out_bytes_per_s, in_bytes_per_s: From the card to the host, and back.
        out_latency_us, in_latency_us: Of every copy.
    """

    name: str
    out_bytes_per_s: float
    in_bytes_per_s: float
    out_latency_us: float = _LATENCY_US
    in_latency_us: float = _LATENCY_US

    def out_us(self, size_bytes: int) -> int:
        """Return how long a copy to the host takes, in whole microseconds, rounded up."""
        return math.ceil(self.out_latency_us + 1e6 * size_bytes / self.out_bytes_per_s)

    def in_us(self, size_bytes: int) -> int:
        """Return how long a copy to the card takes, in whole microseconds, rounded up."""
        return math.ceil(self.in_latency_us + 1e6 * size_bytes / self.in_bytes_per_s)


def _pcie(name: str, transfers_per_s: float) -> Link:
    rate = transfers_per_s * 16 * 128 / 130 / 8 * _REACHED  # spec: PCI Express Base 3.0 to 5.0, 16 lanes, 128b/130b code
    return Link(name, rate, rate)


LINKS: Final[Mapping[str, Link]] = MappingProxyType({
    link.name: link
    for link in (
        _pcie("pcie3", 8e9),  # spec: PCI Express Base 3.0
        _pcie("pcie4", 16e9),  # spec: PCI Express Base 4.0
        _pcie("pcie5", 32e9),  # spec: PCI Express Base 5.0
        Link("nvlink-c2c", 450e9 * _REACHED, 450e9 * _REACHED),  # spec: NVIDIA Grace Hopper white paper, each direction
        Link("paper", 1e9 / 0.0756, 1e9 / 0.0823, 47.2, 9.7),  # measured: arXiv 1903.06631's code, PCIe 3 x16, pinned
    )
})  # fmt: skip


def find_link(link: str | Link) -> Link:
    """Return the link called `link`, or `link` itself.

    Raises:
        UsageError: No such link.
    """
    if isinstance(link, Link):
        return link
    if link not in LINKS:
        raise UsageError(f"Link '{link}' is unknown: use one of {', '.join(LINKS)}.")
    return LINKS[link]
