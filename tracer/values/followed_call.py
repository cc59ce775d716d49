"""One call in the job, and the same call on the host."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import zip_longest
from typing import Any

import torch

from vramcast.tracer.hooks.tensors import LEAVES, leaves_of, map_leaves
from vramcast.tracer.values import unknown_values
from vramcast.tracer.values.function_kinds import COPIES, FLOATS, is_pointwise, reads_nothing
from vramcast.tracer.values.host_reads import ReadLog, count, masks, numbers, raw, repeated, selected
from vramcast.tracer.values.max_shapes import deciding
from vramcast.tracer.values.recipes import LARGE_ELEMENTS, Origin, Recipe, RecipeStep, drawn_leaf, is_too_much, made
from vramcast.tracer.values.tensor_values import TensorValues, host_tensor, is_dense_from_start, is_small

MAX_FLOATS = 4096  # arbitrary: per tensor; a program does not inspect more numbers one by one
# Calls with results that may be larger than the product of their arguments' sizes.
_SQUARING = frozenset({"block_diag", "combinations", "corrcoef", "cov", "diag", "diag_embed", "diagflat", "vander"})
_MOVES = frozenset({"clone", "contiguous", "cuda", "detach", "to"})
_DROPPED = frozenset({"generator", "pin_memory", "non_blocking"})  # arguments without a meaning on the host


def _on_host(func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    if name == "cuda":
        return args[0].clone()
    if name == "histc" and not args[0].is_floating_point():  # the host's kernel takes only floats
        return func(args[0].double(), *args[1:], **kwargs).to(args[0].dtype)
    return func(*args, **kwargs)


def _again(func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """Repeat the call later, with any modified argument replaced by a copy."""
    if name == "__setitem__" or name.endswith("_"):
        args = (args[0].clone(), *args[1:])
    result = _on_host(func, name, args, kwargs)
    return args[0] if name == "__setitem__" else result


def most_elements(name: str, arguments: Any, tensors: list[torch.Tensor]) -> float:
    """Return a size that no result of a call exceeds: each dimension is one of a tensor, or follows from numbers."""
    if is_pointwise(name):
        return math.prod(map(max, zip_longest(*(reversed(t.shape) for t in tensors), fillvalue=1)))
    numbers = [n for n in leaves_of(arguments) if type(n) is int or (type(n) is float and not tensors)]
    return math.prod(max(abs(n), 1 / (abs(n) or 1)) for n in numbers) * math.prod(max(t.numel(), 1) for t in tensors)


def derivation(
    func: Callable[..., Any], name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor], recipes: list[Recipe]
) -> RecipeStep:
    """Return a step that repeats a call with usual arguments, among them `tensors` with their recipes."""
    by_id = dict(zip(map(id, tensors), recipes, strict=True))

    def with_recipes(value: Any) -> Any:
        return by_id.get(id(value), value)

    is_flat = LEAVES.issuperset(map(type, args))  # as most are; then without a call for each
    made_of = tuple([by_id.get(id(value), value) for value in args]) if is_flat else map_leaves(with_recipes, args, slice)
    named = {key: map_leaves(with_recipes, value) for key, value in kwargs.items() if key not in _DROPPED} if kwargs else {}
    return RecipeStep(name, functools.partial(_again, func, name), made_of, named, recipes)


def result_recipe(step: RecipeStep, place: int, result: torch.Tensor, *, rounds: bool = False) -> Recipe:
    """Return the recipe of one result of a step; a result that only moves or rounds drawn data is itself drawn."""
    if rounds or (step.name in _MOVES and result.is_floating_point()):
        source = step.args[0] if step.args else None
        if isinstance(source, Recipe) and source.is_drawn and source.shape == result.shape:
            return drawn_leaf(result.shape, result.dtype)
    return made(step, place, result)


def _n_places(indices: torch.Tensor, shape: torch.Size) -> int:
    """Return how many different places a sparse tensor's indices (dimensions x entries) address."""
    flat = torch.zeros(indices.shape[1], dtype=torch.int64)
    for row, size in zip(indices, shape, strict=False):
        flat = flat * size + row
    return int(flat.unique().numel())


class FollowedCall:
    """One call, with its arguments as host tensors.

    Attributes:
        origin: Origin of the values known here.
        known: Whether all values are known.
        overwritten: A tensor with unknown contents that the call copies to; None: there is none.
    """

    def __init__(self, values: TensorValues, func: Any, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> None:
        self.func = func
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.tensors = tensors
        self.origin = Origin.KNOWN
        self._values = values
        self._host: dict[int, torch.Tensor] = {}
        self.on_card = [t for t in tensors if values.on_card(t)]
        self.overwritten = self._overwritten() if name == "copy_" else None
        floats = unknown_values.is_deciding(name, args)
        unknown = []
        for tensor in tensors:
            found = values.value(tensor)
            if tensor is self.overwritten:
                self._take(tensor, host_tensor(tensor.shape, tensor.dtype), Origin.KNOWN)
            elif found is None:
                unknown.append(tensor)
            else:
                self._take(tensor, *found)
        if floats and not unknown_values.makes_integers(name, args):
            for tensor in unknown:
                if (guess := values.guess(name, tensor)) is not None:
                    self._take(tensor, *guess)
        self.known = all(id(t) in self._host for t in tensors)
        if self.known and unknown_values.is_of_finite(name):
            self.origin = Origin.KNOWN

    def _overwritten(self) -> torch.Tensor | None:
        """Return a copy's target if it has integers whose new contents can be kept, and unknown ones so far."""
        tensor = self.args[0]
        is_kept = self._values.on_card(tensor) and not tensor.is_floating_point() and is_small(tensor)
        is_kept = is_kept and is_dense_from_start(tensor) and self._values.value(tensor) is None
        return tensor if is_kept else None

    def draw_float(self) -> bool:
        """Draw an unknown float that the call hands to the host, and return whether there is one."""
        tensor = self.args[1] if self.name == "copy_" else self.args[0]
        if self.known or not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return False
        if not self._values.on_card(tensor) or tensor.numel() > (MAX_FLOATS if self.name in FLOATS else 1):
            return False
        if self.name in COPIES - FLOATS and not self._reads_copy():
            return False
        self._take(tensor, unknown_values.leaf(tensor.shape, tensor.dtype), Origin.DRAWN)
        self.known = all(id(t) in self._host for t in self.tensors)
        return self.known

    def _take(self, tensor: torch.Tensor, value: torch.Tensor, origin: Origin) -> None:
        self._host[id(tensor)] = value
        self.origin = max(self.origin, origin)

    def host_value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the host copy of a known argument."""
        return self._host[id(tensor)]

    @functools.cached_property
    def deciding(self) -> list[torch.Tensor]:
        """The tensors with values that decide what the call reads."""
        if self.name in COPIES and not self._reads_copy():
            return []
        return [t for t in deciding(self.name, self.args, self.kwargs, self.tensors) if isinstance(t, torch.Tensor)]

    def _reads_copy(self) -> bool:
        """Return whether a copying call moves data from the card to the host."""
        if self.name == "copy_":
            return not self._values.on_card(self.args[0])
        if not self._values.on_card(self.args[0]):
            return False
        places = (*self.args[1:], self.kwargs.get("device"))
        return self.name in ("cpu", "tolist") or any(p == "cpu" or p == torch.device("cpu") for p in places)

    def work_out(self) -> bool:
        """Work out the contents of the deciding tensors, and return whether that succeeded."""
        if any(is_too_much(self.name, tensor, self.kwargs) for tensor in self.deciding):
            return False
        for tensor in self.deciding:
            if id(tensor) not in self._host:
                found = self._values.work_out(tensor, self.name)
                if found is None:
                    return False
                self._take(tensor, *found)
        self.known = all(id(t) in self._host for t in self.tensors)
        return True

    def result_elements(self) -> int:
        """Return the size of the largest result, as far as it follows from shapes."""

        def meta(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            return torch.device("meta") if self._values.is_card(value) else value

        if self.name == "cuda":
            return int(self.args[0].numel())
        most = most_elements(self.name, (self.args, self.kwargs), self.tensors)
        if is_pointwise(self.name) or (self.name not in _SQUARING and most <= LARGE_ELEMENTS):
            return int(most)  # calls on meta tensors are slow, and the first one imports sympy
        try:
            results = self.func(*map_leaves(meta, self.args), **map_leaves(meta, self.kwargs))
        except Exception:  # the shape depends on values: the result is no larger than its source
            return 0
        return max((t.numel() for t in leaves_of(results) if isinstance(t, torch.Tensor)), default=0)

    def _arguments(self, host: Callable[[torch.Tensor], Any]) -> tuple[Any, dict[str, Any]]:
        """Return the call's arguments for the host, with each tensor replaced by `host(tensor)`."""

        def replaced(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return host(value)
            return "cpu" if self._values.is_card(value) else value

        if self.name == "cuda":
            return map_leaves(replaced, self.args[:1]), {}
        kwargs = {key: map_leaves(replaced, value) for key, value in self.kwargs.items() if key not in _DROPPED}
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        return map_leaves(replaced, self.args), kwargs

    def on_host(self) -> tuple[Any, list[bytes]]:
        """Make the call on the host, and return its result and the values that the card's C++ code will read."""
        writes = self.name.endswith("_") or self.name == "__setitem__"

        def host(tensor: torch.Tensor) -> torch.Tensor:
            known = self._host[id(tensor)]
            return known.clone() if writes and not self._values.on_card(tensor) else known

        args, kwargs = self._arguments(host)
        reads: list[bytes] = []
        with nullcontext() if reads_nothing(self.name, self.args, self.kwargs, self.tensors) else ReadLog(reads):
            result = _on_host(self.func, self.name, args, kwargs)
        if self.name == "one_hot":  # the host also checks the range of the numbers
            reads = reads[-1:] if self.kwargs.get("num_classes", self.args[1] if len(self.args) > 1 else -1) == -1 else []
        if self.name in COPIES:
            reads = [*reads, raw(result if isinstance(result, torch.Tensor) else args[0])]
        return result, reads

    def step(self) -> RecipeStep | None:
        """Return a step that repeats the call; take it before the call changes anything."""
        if self.name.startswith("_foreach") or unknown_values.is_drawn_afresh(self.name):
            return None
        parts: list[Recipe] = []

        def recipe(tensor: torch.Tensor) -> Recipe:
            parts.append(self._values.recipe(tensor))
            return parts[-1]

        args, kwargs = self._arguments(recipe)
        return RecipeStep(self.name, functools.partial(_again, self.func, self.name), args, kwargs, parts)

    def recipe(self, step: RecipeStep, place: int, result: torch.Tensor) -> Recipe:
        """Return the recipe of one result."""
        return result_recipe(step, place, result, rounds=unknown_values.makes_integers(self.name, self.args))

    @property
    def has_selection(self) -> bool:
        """Return whether `selection` covers all reads, so that the call need not run on the host."""
        return self.name in ("coalesce", "_grouped_mm")

    def selection(self) -> list[bytes]:
        """Return the counts that are read even if the selected or written data is unknown."""
        if self.name == "masked_select":
            mask = self._host.get(id(self.args[1]))
            shape = torch.broadcast_shapes(self.args[0].shape, self.args[1].shape)
            return [] if mask is None else [count(int(mask.expand(shape).count_nonzero()))]
        if self.name == "repeat_interleave":
            repeats = self._host.get(id(self.args[1])) if len(self.args) > 1 else None
            return [] if repeats is None or "output_size" in self.kwargs else repeated(repeats)
        if self.name == "_grouped_mm":
            offsets = self._host.get(id(self.kwargs.get("offs")))
            return [] if offsets is None else [raw(offsets)]
        if self.name == "coalesce":
            places = self._host.get(id(self.deciding[0])) if self.deciding else None
            return [] if places is None else [count(_n_places(places, self.args[0].shape))]
        if self.name in ("__getitem__", "__setitem__"):
            return self._indexing()
        return []

    def _indexing(self) -> list[bytes]:
        single, chosen = numbers(self.args[1]), masks(self.args[1])
        if all(id(i) in self._host for i in (*single, *chosen)):
            return [*(raw(self._host[id(n)]) for n in single), *selected([self._host[id(m)] for m in chosen])]
        written = self.args[2] if self.name == "__setitem__" else None
        # The number of chosen rows equals the number of rows written; otherwise the job would fail.
        return [count(written.shape[0])] if isinstance(written, torch.Tensor) and written.dim() and len(chosen) == 1 else []
