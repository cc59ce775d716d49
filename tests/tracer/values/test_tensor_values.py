"""Contents of tensors on a card, worked out on request."""

from __future__ import annotations

import torch

from vramcast.tracer.values.recipes import LARGE_ELEMENTS, Origin, Recipe, Step
from vramcast.tracer.values.tensor_values import TensorValues


def test_large_mask_selects_alike_after_its_budget_is_used_up() -> None:
    values = TensorValues(lambda tensor: tensor.is_meta, ("meta",))
    mask = torch.empty(LARGE_ELEMENTS + 1, dtype=torch.bool, device="meta")
    step = Step("made", lambda args, kwargs: torch.arange(mask.numel()) % 3 == 0, (), {})
    values._shadows.keep_recipe(mask, Recipe(mask.shape, mask.dtype, Origin.LARGE, step))
    first = values.work_out(mask, "__getitem__")
    values._budget._left_s = 0.0
    again = values.work_out(mask, "__getitem__")
    assert first is not None
    assert again is not None
    assert torch.equal(first[0], again[0])
    other = torch.empty(LARGE_ELEMENTS + 1, dtype=torch.bool, device="meta")
    assert values.work_out(other, "__getitem__") is None
