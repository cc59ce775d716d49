"""Batches with samples of earlier ones have the shapes, types and lengths of those that are loaded whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.program import slow_batches
from vramcast.tracer.program.slow_batches import SlowBatches


class Clock:
    """A clock that only the data move."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Data:
    """A data set that counts its loads in a list, which is no number of its own."""

    def __init__(self, sample: Callable[[int], Any], length: int = 23, seconds: float = 0.02) -> None:
        self.clock, self.sample, self.length, self.seconds = Clock(), sample, length, seconds
        self.loads: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.clock.now += self.seconds
        self.loads.append(index)
        return self.sample(index)


def batches(data: Any, *, position: Callable[[], int] = lambda: 0, epochs: int = 1, **options: Any) -> list[Any]:
    """Return the batches that a job gets."""
    slow = SlowBatches(position)
    wrapped = [(place, slow.fetching) for place in torch_api.places("load_batch")]
    wrapped += [(place, slow.waiting) for place in torch_api.places("wait_for_batch")]
    handles = [ReplacedAttribute(*place, wrap) for place, wrap in wrapped]
    try:
        with patch.object(slow_batches, "time", getattr(data, "clock", time)):
            loader = DataLoader(data, **{"batch_size": 4, **options})
            return [batch for _ in range(epochs) for batch in loader]
    finally:
        for handle in handles:
            handle.remove()


def shapes(part: Any) -> Any:
    """Return the structure of a batch without its values."""
    if isinstance(part, torch.Tensor):
        return tuple(part.shape), part.dtype, part.stride()
    if isinstance(part, dict):
        return {name: shapes(one) for name, one in part.items()}
    if isinstance(part, (list, tuple)):
        return type(part), [shapes(one) for one in part]
    return type(part)


KINDS: dict[str, Callable[[int], Any]] = {
    "image and label": lambda index: (torch.zeros(3, 5, 5), index % 7),
    "dictionary": lambda index: {"x": np.zeros(3, np.float32), "name": f"n{index}", "y": 0.5, "z": {"more": [1, b"two"]}},
    "number": lambda index: index,
    "text": str,
    "pair of texts": lambda index: (str(index), "b"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [23, 24, 3])
def test_shapes_are_those_of_the_data(kind: str, length: int) -> None:
    data = Data(KINDS[kind], length)
    found = batches(data, epochs=2)
    assert [shapes(one) for one in found] == [shapes(one) for one in DataLoader(data, batch_size=4)] * 2  # type: ignore[arg-type]


def test_loads_one_sample_of_each_later_batch() -> None:
    data = Data(KINDS["image and label"])
    batches(data, epochs=2)
    assert data.loads == [0, 1, 2, 3, 4, 8, 12, 16, 20, 0, 4, 8, 12, 16, 20]


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=12))
def test_sizes_that_change_from_batch_to_batch(sizes: list[int]) -> None:
    data = Data(lambda index: torch.zeros(sizes[index // 4]), 4 * len(sizes))
    assert [one.shape[1] for one in batches(data)] == sizes


def test_no_more_than_some_kinds_are_kept() -> None:
    data = Data(lambda index: torch.zeros(1 + index // 4), 400)
    assert [one.shape for one in batches(data, epochs=2)] == [(4, 1 + at) for at in range(100)] * 2


def test_a_job_may_change_its_batches() -> None:
    data = Data(lambda index: {"x": torch.ones(2), "name": "n"}, 40)
    for batch in batches(data):
        assert batch.pop("x").mul_(3).eq(3).all()
        assert batch["name"].pop() == "n"


def squares(samples: Any) -> Any:
    return torch.zeros(len(samples) ** 2)


class Counting(Data):
    """Data with a number of their own that changes, from which a size may follow."""

    n = 0

    def __getitem__(self, index: int) -> Any:
        self.n += 1
        return super().__getitem__(index)


class Together(Data):
    """Data that are loaded in groups."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[one] for one in indices]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Data, {"seconds": 1e-6}), (Data, {"collate_fn": squares}), (Data, {"batch_size": None}), (Data, {"batch_size": 1}),
        (Counting, {}), (Together, {}),
    ],
)  # fmt: skip
def test_others_are_loaded_whole(kind: type[Data], options: dict[str, Any]) -> None:
    data = kind(KINDS["image and label"], seconds=options.get("seconds", 0.02))
    batches(data, **{name: one for name, one in options.items() if name != "seconds"})
    assert [*dict.fromkeys(data.loads)] == [*range(23)]


def test_data_that_take_memory_of_the_card_are_loaded_whole() -> None:
    data = Data(KINDS["image and label"])
    batches(data, position=lambda: len(data.loads))
    assert data.loads == [*range(23)]


class Slow:
    """Slow data in processes of their own; a label says which sample was loaded."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return torch.zeros(3), index


@pytest.mark.integration
def test_workers_of_later_epochs_inherit_batches() -> None:
    found = batches(Slow(), num_workers=1, epochs=2, multiprocessing_context="fork")
    assert [shapes(one) for one in found] == [shapes(one) for one in DataLoader(Slow(), batch_size=4)] * 2  # type: ignore[arg-type]
    labels = [one[1].tolist() for one in found]
    assert labels[0] == [0, 1, 2, 3]
    assert labels[4:] == [[0, 1, 2, 3]] * 4  # those of the first batch, though others were asked for
