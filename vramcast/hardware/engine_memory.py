"""Memory that a serving engine's process takes outside PyTorch after its context: code loaded late, peer buffers, CUDA graphs.

An engine measures it on the card and takes it off its KV cache. The null GPU loads no code, so the null GPU takes it from a
table of what others logged (engine_memory.toml).
"""

from __future__ import annotations

import functools
import statistics
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.core.units import GIB
from vramcast.hardware.device import Device

_LOGGED_CARDS: Final = ("H100",)  # measured: the cards of the table, as in their names in torch
_LARGE_BYTES: Final = 70 * GIB  # spec: EngineArgs.get_batch_defaults of vLLM 0.22: larger batches from here on, but on no A100
_ENOUGH: Final = 8  # arbitrary: starts whose range may stand for the next one's


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Memory of an engine's process outside PyTorch.

    Attributes:
        non_torch_bytes: What the profile run adds.
        less_bytes, more_bytes: How much less or more it may be: the range of the starts logged, with the error of graphs.
        graph_bytes, node_bytes: What a CUDA graph takes, and each of its nodes.
        n_logged: Number of starts the range is from, with this version, these ranks and such a card; 0: it is from all.
    """

    non_torch_bytes: int
    less_bytes: int
    more_bytes: int
    graph_bytes: int
    node_bytes: int
    n_logged: int


def engine_memory(version: str, card: str, *, tensor: int = 1, pipeline: int = 1) -> EngineMemory:
    """Return the memory of vLLM's process outside PyTorch.

    Without enough starts of this version, with these ranks, on such a card, the range is that of all starts in the table.

    Args:
        version: vLLM's release.
        card: The card's name in torch.
        tensor, pipeline: Ranks that share a layer, and stages.

    Example:
        >>> known = engine_memory("0.19.0", "NVIDIA H100 80GB HBM3")
        >>> known.n_logged, round(known.non_torch_bytes / 2**30, 2)
        (30, 0.25)
    """
    table = _table()
    everything = [gib for row in table["non_torch"] for gib in _seen(row)]
    alike = [row for row in table["non_torch"] if (row["tensor"], row["pipeline"]) == (tensor, pipeline)]
    of_version = next((row for row in alike if _release(row["since"]) <= _release(version)), None)  # the newest come first
    seen = _seen(of_version) if of_version else everything
    is_known = of_version is not None and len(seen) >= _ENOUGH and any(name in card for name in _LOGGED_CARDS)
    spread = seen if is_known else everything
    middle, error = statistics.median(seen), table["graph"]["error"]
    return EngineMemory(
        non_torch_bytes=int(middle * GIB),
        less_bytes=int((middle - min(spread) + error) * GIB),
        more_bytes=int((max(spread) - middle + error) * GIB),
        graph_bytes=table["graph"]["bytes"],
        node_bytes=table["graph"]["node_bytes"],
        n_logged=len(seen) if is_known else 0,
    )


def stack_bytes(card: Device, vocabulary: int) -> int:
    """Return what the driver takes once vLLM's kernel of top-k and top-p has run: the stack of all resident threads grows.

    An even vocabulary leaves it within the driver's default. Rows of an odd one are not aligned, and registers spill.

    Args:
        card: The card.
        vocabulary: Length of a row.

    Example:
        >>> from vramcast.hardware.cards import DEVICES
        >>> stack_bytes(DEVICES["h100"], 128_256), round(stack_bytes(DEVICES["h100"], 49_155) / 2**30, 2)
        (0, 0.22)
    """
    if vocabulary % 2 == 0:
        return 0
    table = _table()["stack"]
    known = [row for row in table["seen"] if tuple(row["capability"]) <= card.compute_capability] or table["seen"]
    more_bytes = int(known[-1]["bytes"]) - int(table["initial"])
    return max(0, more_bytes) * card.sm_count * card.threads_per_sm


def runs_alike(one: Device, other: Device) -> bool:
    """Return whether vLLM's weights and activations are equal on two cards: the same kernels, and the same default batches.

    Args:
        one, other: The cards.

    Example:
        >>> from vramcast.hardware.cards import DEVICES
        >>> runs_alike(DEVICES["h100"], DEVICES["h200"]), runs_alike(DEVICES["h100"], DEVICES["h100-pcie"])
        (True, False)
    """
    return _kind(one) == _kind(other)


def _kind(card: Device) -> tuple[object, ...]:
    has_large_batches = card.total_bytes >= _LARGE_BYTES and "a100" not in card.name.lower()
    return card.compute_capability, card.sm_count, card.shared_per_sm_bytes, has_large_batches


def _seen(row: dict[str, Any]) -> list[float]:
    return [gib for gib, times in row["seen"] for _ in range(times)]


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _release(version: str) -> tuple[int, ...]:
    parts = [part for part in version.split(".")[:2] if part.isdecimal()]
    return tuple(int(part) for part in parts)
