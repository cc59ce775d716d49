"""How to work out on the host what a tensor holds, kept until somebody asks: most values are never asked for.

A recipe is a call with recipes in place of its tensors, down to what came from the host (known) and to what nobody knows:
weights, products, convolutions. That is drawn (`unknown_values.py`) when it is asked for, and again alike the next time.

    scores = linear(x)                  leaf: drawn
    ids = (scores * 100).long()         recipe: long(mul(leaf, 100))
    torch.bincount(ids)                 asks: the host draws the scores, multiplies, and tells the card the largest id

A recipe holds no tensor of the card, whose memory would live on with it. Its work has a `Budget`; beyond that the values are
unknown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import torch

from vramcast.tracer.hooks.torch_api import DisableTorchFunction, disable_current_modes, tree_flatten, tree_map
from vramcast.tracer.values import unknown_values

LARGE_ELEMENTS: Final = 1 << 20  # arbitrary: above this nothing is worked out before it is asked for; 8 MiB of token ids
_MAX_ELEMENTS: Final = 1 << 26  # arbitrary: of one tensor which is worked out; 512 MiB of indices, some 0.5 s a call
_MAX_SORTED: Final = 1 << 22  # arbitrary: of what is sorted; some 2 s
_MAX_ROWS: Final = 1 << 16  # arbitrary: of which the different ones are asked for; some 1 s
_BUDGET_S: Final = 20.0  # arbitrary: of one step of a job, for all that is asked for
_MAX_DEPTH: Final = 100  # arbitrary: calls in a row, below Python's limit of recursion; what is deeper is drawn

_SORTING = frozenset({"argsort", "kthvalue", "median", "msort", "quantile", "sort", "topk", "unique"})
_COUNTING = frozenset({"count_nonzero", "sum"})
_PLACES = frozenset({"argmax", "argmin", "multinomial"})
# Calls whose result's elements are some of their argument's.
_WITH_PLACES = frozenset({"max", "min", "sort", "topk"})  # whose second result are places
_KEEPING = frozenset({
    "__getitem__", "amax", "amin", "clone", "cpu", "detach", "flatten", "int", "long", "max", "min", "reshape", "select",
    "squeeze", "to", "unbind", "unsqueeze", "view",
})  # fmt: skip
BOUNDED = _COUNTING | _PLACES | _WITH_PLACES | _KEEPING  # calls whose result may have a largest


class Origin(IntEnum):
    """Where a value comes from; of several the largest counts."""

    KNOWN = 0  # from the host
    DRAWN = 1  # from something drawn of at most LARGE_ELEMENTS
    LARGE = 2  # from something larger: a shape which depends on it has a ceiling


class OverBudget(Exception):
    """What was asked for is too much work for the host."""


class Budget:
    """How much the host works for one job."""

    def __init__(self) -> None:
        self._left_s = _BUDGET_S

    def renew(self) -> None:
        """Begin again: a step is over."""
        self._left_s = _BUDGET_S

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Count the time of what runs inside.

        Raises:
            OverBudget: nothing is left.
        """
        if self._left_s <= 0:
            raise OverBudget
        started = time.perf_counter()
        try:
            yield
        finally:
            self._left_s -= time.perf_counter() - started


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One call, with recipes in place of tensors."""

    name: str
    run: Callable[[Any, Any], Any]
    args: Any
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How one tensor was made.

    Attributes:
        step: The call; None: a leaf.
        place: Which of the call's results.
        known: Of a leaf: its values, or None where they are no longer there; without `known` it is drawn.
        depth: Calls down to the farthest leaf.
    """

    shape: torch.Size
    dtype: torch.dtype
    origin: Origin
    step: Step | None = None
    place: int = 0
    known: Callable[[], torch.Tensor | None] | None = field(default=None, repr=False)
    depth: int = 0

    @property
    def is_drawn(self) -> bool:
        """Whether it is a leaf which nobody knows."""
        return self.step is None and self.known is None

    def most_counted(self) -> int | None:
        """Return the largest that each element may be, where it is a count of a mask's ones, or a place in a tensor."""
        of = self.step.args[0] if self.step is not None and self.step.args else None
        if self.step is None or not isinstance(of, Recipe):
            return None
        if self.step.name in _COUNTING and of.dtype == torch.bool:
            return math.prod(of.shape) // max(math.prod(self.shape), 1)
        if self.step.name in _PLACES or (self.step.name in _WITH_PLACES and self.place == 1):
            return max(math.prod(of.shape), 1) - 1
        is_alone = not any(isinstance(part, Recipe) for part in self.step.args[1:])
        return of.most_counted() if self.step.name in _KEEPING and is_alone and self.place == 0 else None


def is_too_much(name: str, tensor: torch.Tensor | Recipe, kwargs: dict[str, Any]) -> bool:
    """Return whether a call on `tensor` takes longer than a budget could stop in time."""
    along = kwargs.get("dim") if name.startswith("unique") else None
    if along is not None and tensor.shape[along] > _MAX_ROWS:
        return True
    return math.prod(tensor.shape) > (_MAX_SORTED if name in _SORTING else _MAX_ELEMENTS)


def drawn_leaf(shape: torch.Size, dtype: torch.dtype) -> Recipe:
    """Return the recipe of what nobody knows."""
    return Recipe(shape, dtype, Origin.LARGE if math.prod(shape) > LARGE_ELEMENTS else Origin.DRAWN)


def made(step: Step, place: int, tensor: torch.Tensor) -> Recipe:
    """Return the recipe of a call's result `tensor`."""
    parts = [part for part in tree_flatten((step.args, step.kwargs))[0] if isinstance(part, Recipe)]
    depth = 1 + max((part.depth for part in parts), default=0)
    origin = max((part.origin for part in parts), default=Origin.KNOWN)
    if depth > _MAX_DEPTH:
        leaf = drawn_leaf(tensor.shape, tensor.dtype)
        return Recipe(leaf.shape, leaf.dtype, max(origin, leaf.origin))
    return Recipe(tensor.shape, tensor.dtype, origin, step, place, depth=depth)


def work_out(recipe: Recipe, budget: Budget) -> torch.Tensor:
    """Return what a tensor holds.

    Raises:
        OverBudget: it is too much work.
    """
    with budget.spent(), host_only(), torch.random.fork_rng(devices=[]):
        # arbitrary: the seed; the job's own random numbers stay what they are, and what is asked twice is the same twice
        torch.default_generator.manual_seed(0)
        return _result(recipe, {}, budget)


@contextmanager
def host_only() -> Iterator[None]:
    """While active, PyTorch does what it does where nobody watches."""
    with disable_current_modes(), torch.no_grad(), torch.inference_mode(False), DisableTorchFunction():
        yield


def _result(recipe: Recipe, done: dict[int, list[Any]], budget: Budget) -> torch.Tensor:
    if is_too_much("", recipe, {}):
        raise OverBudget
    if recipe.step is None:
        known = recipe.known() if recipe.known is not None else None
        return known if known is not None else unknown_values.leaf(recipe.shape, recipe.dtype)
    step = recipe.step
    if id(step) not in done:
        done[id(step)] = _run(step, done, budget)
    results = done[id(step)]
    value = results[recipe.place] if recipe.place < len(results) else None
    # What the card was told, or the host could not do, may have another shape: then it is drawn.
    is_same = value is not None and value.shape == recipe.shape and value.dtype == recipe.dtype
    return value if isinstance(value, torch.Tensor) and is_same else unknown_values.leaf(recipe.shape, recipe.dtype)


def _run(step: Step, done: dict[int, list[Any]], budget: Budget) -> list[Any]:
    first = step.args[0] if step.args else None
    if isinstance(first, Recipe) and is_too_much(step.name, first, step.kwargs):
        raise OverBudget
    args, kwargs = tree_map(
        lambda part: _result(part, done, budget) if isinstance(part, Recipe) else part, (step.args, step.kwargs)
    )
    try:
        return tree_flatten(step.run(args, kwargs))[0]
    except Exception:  # what the host cannot do, the card may
        return []
