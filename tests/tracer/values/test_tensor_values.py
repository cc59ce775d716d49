"""Contents of tensors on a card, worked out on request."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from tests.tracer.values.test_host_weights import UnreadCard
from vramcast.tracer.values import recipes, unknown_values
from vramcast.tracer.values.follower import Values
from vramcast.tracer.values.recipes import LARGE_ELEMENTS, Origin, Recipe, RecipeStep
from vramcast.tracer.values.tensor_values import TensorValues


def test_large_mask_selects_alike_after_its_budget_is_used_up() -> None:
    values = TensorValues(lambda tensor: tensor.is_meta, ("meta",))
    mask = torch.empty(LARGE_ELEMENTS + 1, dtype=torch.bool, device="meta")
    step = RecipeStep("made", lambda args, kwargs: torch.arange(mask.numel()) % 3 == 0, (), {})
    values._shadows.keep_recipe(mask, Recipe(mask.shape, mask.dtype, Origin.LARGE, step))
    first = values.work_out(mask, "__getitem__")
    values._budget._left_s = 0.0
    again = values.work_out(mask, "__getitem__")
    assert first is not None
    assert again is not None
    assert torch.equal(first[0], again[0])
    other = torch.empty(LARGE_ELEMENTS + 1, dtype=torch.bool, device="meta")
    assert values.work_out(other, "__getitem__") is None


def test_results_on_the_way_to_a_value_are_dropped() -> None:
    seen: list[Any] = []
    alive: list[int] = []

    def run(args: Any, kwargs: Any) -> Any:
        alive.append(sum(one() is not None for one in seen))
        result = args[0] + 1
        seen.append(weakref.ref(result))
        return result

    shape = torch.zeros(3)
    recipe = recipes.drawn_leaf(shape.shape, shape.dtype)
    for _ in range(10):
        recipe = recipes.made(recipes.RecipeStep("add", run, (recipe,), {}), 0, shape)
    twice = recipes.made(recipes.RecipeStep("add", lambda args, kwargs: args[0] + args[1], (recipe, recipe), {}), 0, shape)
    expected = 2 * (unknown_values.leaf(shape.shape, shape.dtype) + 10)
    assert torch.allclose(recipes.work_out(twice, recipes.TimeBudget()), expected)
    assert (len(alive), max(alive)) == (10, 1)


def test_buffer_is_known_as_far_as_it_was_last_written_from_its_start() -> None:
    values = Values(UnreadCard(), on_card=lambda tensor: tensor.is_meta, devices=("meta",))
    with values:
        buffer = torch.empty(20, dtype=torch.int64, device="meta")
        buffer[:10].copy_(torch.arange(10))
        first, both = buffer[:10], buffer[:12]
        known = values.value(first)
        assert known is not None
        assert known[0].tolist() == list(range(10))
        assert values.value(both) is None
        buffer[5:15].fill_(7)
        assert values.value(first) is None
        buffer[:12].copy_(torch.zeros(12, dtype=torch.int64))
        known = values.value(both)
        assert known is not None
        assert known[0].tolist() == [0] * 12


def test_contents_are_kept_as_they_read() -> None:
    values = TensorValues(lambda tensor: tensor.is_meta, ("meta",))
    numbers = torch.tensor([[1 + 2j, 3 - 4j], [5j, 6]])
    for value in (numbers.real.contiguous(), numbers.T, numbers.conj(), numbers.conj().imag, torch.ones(1, 2).expand(2, 2)):
        on_card = torch.empty(value.shape, dtype=value.dtype, device="meta")
        values.holds(on_card, value, Origin.KNOWN)
        found = values.value(on_card)
        assert found is not None
        assert found[0].tolist() == value.tolist()
