"""Recipes for the contents of a tensor, worked out on the host only on request: most values are never needed.

A recipe is a call with recipes in place of its tensors, down to leaves: data from the host (known), and unknown results
(weights, products, convolutions). Unknown leaves are drawn (`unknown_values.py`) on request, and are the same each time.

    scores = linear(x)                  leaf: drawn
    ids = (scores * 100).long()         recipe: long(mul(leaf, 100))
    torch.bincount(ids)                 request: the host draws the scores, multiplies, and gives the card the largest id

A recipe holds no card tensor, so it does not extend the life of its memory. A `TimeBudget` limits the work;
beyond that the values are unknown.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import torch

from vramcast.tracer.hooks.tensors import leaves_of, map_leaves
from vramcast.tracer.hooks.torch_api import DisableTorchFunction, disable_current_modes, n_dispatch_modes
from vramcast.tracer.values import unknown_values

LARGE_ELEMENTS: Final = 1 << 20  # arbitrary: larger tensors are worked out only on request; 8 MiB of token ids
_MAX_ELEMENTS: Final = 1 << 26  # arbitrary: per tensor; 512 MiB of indices, some 0.5 s a call
_MAX_SORTED: Final = 1 << 22  # arbitrary: elements to sort; some 2 s
_MAX_ROWS: Final = 1 << 16  # arbitrary: rows to search for distinct ones; some 1 s
_BUDGET_S: Final = 20.0  # arbitrary: for all requests in one step of a job
_MAX_DEPTH: Final = 100  # arbitrary: calls in a row, below Python's recursion limit; deeper results are drawn

_SORTING = frozenset({"argsort", "kthvalue", "median", "msort", "quantile", "sort", "topk", "unique"})
_COUNTING = frozenset({"count_nonzero", "sum"})
_PLACES = frozenset({"argmax", "argmin", "multinomial"})
# Calls that return elements of their argument.
_WITH_PLACES = frozenset({"max", "min", "sort", "topk"})  # their second result holds places
_KEEPING = frozenset({
    "__getitem__", "amax", "amin", "clone", "cpu", "detach", "flatten", "int", "long", "max", "min", "reshape", "select",
    "squeeze", "to", "unbind", "unsqueeze", "view",
})  # fmt: skip
BOUNDED = _COUNTING | _PLACES | _WITH_PLACES | _KEEPING  # calls whose result may have a maximum


class Origin(IntEnum):
    """The origin of a value; the largest of several counts."""

    KNOWN = 0  # from the host
    DRAWN = 1  # from drawn data of at most LARGE_ELEMENTS
    LARGE = 2  # from larger drawn data: a shape that depends on it has a ceiling


class OverBudget(Exception):
    """The request is too much work for the host."""


class TimeBudget:
    """The host's time budget for one job."""

    def __init__(self) -> None:
        self._left_s = _BUDGET_S

    def renew(self) -> None:
        """Restore the full budget after a step."""
        self._left_s = _BUDGET_S

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Count the time of the code that runs inside.

        Raises:
            OverBudget: The budget is used up.
        """
        if self._left_s <= 0:
            raise OverBudget
        started = time.perf_counter()
        try:
            yield
        finally:
            self._left_s -= time.perf_counter() - started


@dataclass(slots=True, eq=False)
class RecipeStep:
    """One call, with recipes in place of tensors.

    Attributes:
        parts: The recipes among its arguments.
    """

    name: str
    run: Callable[[Any, Any], Any]
    args: Any
    kwargs: dict[str, Any]
    parts: list[Recipe] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the recipes among the arguments if they were not given."""
        if not self.parts:
            self.parts = [part for part in leaves_of((self.args, self.kwargs)) if isinstance(part, Recipe)]


@dataclass(slots=True, eq=False)
class Recipe:
    """The derivation of one tensor.

    Attributes:
        step: The call; None: a leaf.
        place: Index among the call's results.
        known: For a leaf, a function that returns its values, or None if they are gone; a leaf without `known` is drawn.
        depth: Calls down to the farthest leaf.
    """

    shape: torch.Size
    dtype: torch.dtype
    origin: Origin
    step: RecipeStep | None = None
    place: int = 0
    known: Callable[[], torch.Tensor | None] | None = field(default=None, repr=False)
    depth: int = 0

    @property
    def is_drawn(self) -> bool:
        """Return whether it is an unknown leaf."""
        return self.step is None and self.known is None

    @property
    def is_known(self) -> bool:
        """Return whether its values are available at once."""
        return self.known is not None and math.prod(self.shape) <= LARGE_ELEMENTS

    def most_counted(self) -> int | None:
        """Return the maximum of each element, if it is a count of ones in a mask or a place in a tensor."""
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
    """Return whether a call on `tensor` takes too long for a budget to stop it in time."""
    along = kwargs.get("dim") if name.startswith("unique") else None
    if along is not None and tensor.shape[along] > _MAX_ROWS:
        return True
    return math.prod(tensor.shape) > (_MAX_SORTED if name in _SORTING else _MAX_ELEMENTS)


@functools.lru_cache(maxsize=1024)  # arbitrary: more shapes than a step has; a leaf has no state
def drawn_leaf(shape: torch.Size, dtype: torch.dtype) -> Recipe:
    """Return the recipe of an unknown tensor; the length of a nested one is a symbol, and counts as large."""
    return Recipe(shape, dtype, Origin.DRAWN if type(n := math.prod(shape)) is int and n <= LARGE_ELEMENTS else Origin.LARGE)


def made(step: RecipeStep, place: int, tensor: torch.Tensor) -> Recipe:
    """Return the recipe of a call's result `tensor`."""
    depth, origin = 1, Origin.KNOWN
    for part in step.parts:  # faster than `max`
        depth = part.depth + 1 if part.depth >= depth else depth
        origin = part.origin if part.origin > origin else origin
    if depth > _MAX_DEPTH:
        leaf = drawn_leaf(tensor.shape, tensor.dtype)
        return Recipe(leaf.shape, leaf.dtype, max(origin, leaf.origin))
    return Recipe(tensor.shape, tensor.dtype, origin, step, place, depth=depth)


def work_out(recipe: Recipe, budget: TimeBudget) -> torch.Tensor:
    """Return the contents of a tensor.

    Raises:
        OverBudget: It is too much work.
    """
    with budget.spent(), host_only(), torch.random.fork_rng(devices=[]):
        # arbitrary: the seed; it leaves the job's own random numbers alone, and repeated requests give equal values
        torch.default_generator.manual_seed(0)
        left: Counter[int] = Counter()
        _count(recipe, left)
        return _result(recipe, {}, left, budget)


def _count(recipe: Recipe, left: Counter[int]) -> None:
    """Count how often the results of each step are needed: they are dropped behind the last use, because they may be large."""
    step = recipe.step
    if step is None:
        return
    left[id(step)] += 1
    if left[id(step)] == 1:
        for part in step.parts:
            _count(part, left)


@contextmanager
def host_only() -> Iterator[None]:
    """Run PyTorch without any active mode."""
    has_grad = torch.is_grad_enabled()
    torch.set_grad_enabled(False)  # takes half as long as `no_grad`
    try:
        with DisableTorchFunction():
            if n_dispatch_modes() or torch.is_inference_mode_enabled():
                with disable_current_modes(), torch.inference_mode(False), torch.no_grad():  # the second enables gradients
                    yield
            else:  # without the two managers, which take longer than most calls
                yield
    finally:
        torch.set_grad_enabled(has_grad)


def _result(recipe: Recipe, done: dict[int, list[Any]], left: Counter[int], budget: TimeBudget) -> torch.Tensor:
    if is_too_much("", recipe, {}):
        raise OverBudget
    if recipe.step is None:
        known = recipe.known() if recipe.known is not None else None
        return known if known is not None else unknown_values.leaf(recipe.shape, recipe.dtype)
    step = recipe.step
    if id(step) not in done:
        done[id(step)] = _run(step, done, left, budget)
    left[id(step)] -= 1
    results = done[id(step)] if left[id(step)] else done.pop(id(step))
    value = results[recipe.place] if recipe.place < len(results) else None
    # The card's answer, or a failure on the host, may give another shape; the value is then drawn.
    is_same = value is not None and value.shape == recipe.shape and value.dtype == recipe.dtype
    return value if isinstance(value, torch.Tensor) and is_same else unknown_values.leaf(recipe.shape, recipe.dtype)


def _run(step: RecipeStep, done: dict[int, list[Any]], left: Counter[int], budget: TimeBudget) -> list[Any]:
    first = step.args[0] if step.args else None
    if isinstance(first, Recipe) and is_too_much(step.name, first, step.kwargs):
        raise OverBudget
    args, kwargs = map_leaves(
        lambda part: _result(part, done, left, budget) if type(part) is Recipe else part, (step.args, step.kwargs), Recipe
    )
    try:
        return leaves_of(step.run(args, kwargs))
    except Exception:  # the host may lack what the card supports
        return []
