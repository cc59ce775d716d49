"""Memory outside PyTorch of a serving engine's process, from the table of logged starts."""

from __future__ import annotations

import pytest

from vramcast.core.units import GIB
from vramcast.hardware.cards import DEVICES
from vramcast.hardware.engine_memory import EngineMemory, engine_memory, stack_bytes

H100 = "NVIDIA H100 80GB HBM3"


def _gib(known: EngineMemory) -> tuple[float, float, float]:
    sizes = (known.non_torch_bytes - known.less_bytes, known.non_torch_bytes, known.non_torch_bytes + known.more_bytes)
    low, middle, high = (round(size / GIB, 2) for size in sizes)
    return low, middle, high


@pytest.mark.parametrize(
    ("version", "tensor", "range_gib"),
    [("0.19.0", 1, (0.12, 0.25, 0.38)), ("0.22.1", 2, (1.94, 2.08, 2.23)), ("0.11.2", 1, (-0.05, 0.13, 0.26))],
)
def test_range_is_that_of_logged_starts_with_the_error_of_graphs(
    version: str, tensor: int, range_gib: tuple[float, float, float]
) -> None:
    known = engine_memory(version, H100, tensor=tensor)
    assert known.n_logged >= 8
    assert _gib(known) == range_gib


@pytest.mark.parametrize(
    ("version", "card", "tensor", "pipeline"),
    [("0.19.0", "NVIDIA A100-SXM4-80GB", 1, 1), ("0.19.0", H100, 8, 1), ("0.19.0", H100, 1, 2), ("0.6.6", H100, 1, 1)],
)
def test_without_enough_starts_the_range_is_that_of_all(version: str, card: str, tensor: int, pipeline: int) -> None:
    known = engine_memory(version, card, tensor=tensor, pipeline=pipeline)
    low, _, high = _gib(known)
    assert known.n_logged == 0
    assert (low, high) == (-0.05, 2.33)


@pytest.mark.parametrize("vocabulary", [51_200, 128_256, 131_072, 151_936, 152_064, 201_088, 256_000])
def test_stack_for_even_vocabulary_is_within_the_default(vocabulary: int) -> None:
    assert stack_bytes(DEVICES["h100"], vocabulary) == 0


def test_stack_for_odd_vocabulary_is_what_granite_logged_above_the_others() -> None:
    """Three starts logged 0.46 GiB outside PyTorch, and the others 0.24 to 0.26."""
    logged = 0.46 - engine_memory("0.19.0", H100).non_torch_bytes / GIB
    assert stack_bytes(DEVICES["h100"], 49_155) / GIB == pytest.approx(logged, abs=0.02)


@pytest.mark.parametrize("card", list(DEVICES))
def test_stack_for_odd_vocabulary_grows_on_each_card(card: str) -> None:
    assert 0 < stack_bytes(DEVICES[card], 49_155) < GIB
