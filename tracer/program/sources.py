"""Sources of a loop's values that can leave out some of them, without making them where that is possible."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any, Final

from vramcast.tracer.hooks import torch_api

_MOST_DRAWN: Final = 2_000  # arbitrary: values that one loop draws in vain, each of which may load data
# Containers, and iterators that can be set: their values are left out at no cost.
_SET: Final = (*map(type, (iter([]), iter(()), iter(range(0)), iter(range(1 << 99)), iter(""), iter(b""))),)
_FREE: Final = (range, list, tuple, str, bytes, dict, set, frozenset, *map(type, ({}.keys(), {}.values(), {}.items())), *_SET)


class SampledIterable:
    """Any iterable: values are left out by drawing them.

    Args:
        values: The iterable.
        is_free: Whether any number of values can be left out; otherwise their number is limited.

    Attributes:
        total: Number of values, if known.
    """

    def __init__(self, values: Any, *, is_free: bool = False) -> None:
        self.total = _length(values)
        self.is_free = is_free
        self._iterator = iter(values)
        self._drawn = 0

    def __next__(self) -> Any:
        """Return the next value."""
        return self.given(next(self._iterator))

    def given(self, value: Any) -> Any:
        """Return what the loop gets for a value of the iterator: its numbers run ahead after values were left out."""
        return value

    def skip(self, count: int) -> int:
        """Leave out some values and return how many were left out."""
        if type(self._iterator) in _SET:
            # spec: the third part is its index; a range has None since CPython 3.12, and counts from where it is.
            count = min(count, operator.length_hint(self._iterator))
            self._iterator.__setstate__(((*self._iterator.__reduce__(), None)[2] or 0) + count)
            return count
        allowed = count if self.is_free else min(count, _MOST_DRAWN - self._drawn)
        done = sum(1 for _ in itertools.islice(self._iterator, allowed))
        self._drawn += done
        return done

    def moved(self, count: int) -> None:
        """Count values that the iterator itself has left out."""


class Batches(SampledIterable):
    """An iterator of a data loader: its sampler is drawn from, and no data are loaded; iterable data sets are drawn from.

    Args:
        iterator: The iterator, which the job itself reads.
    """

    def __init__(self, iterator: Any) -> None:
        items = getattr(getattr(iterator, torch_api.LOADER_FETCHER, None), "dataset_iter", None)
        super().__init__(getattr(iterator, torch_api.LOADER_SAMPLER) if items is None else items, is_free=items is None)
        self.total = _length(iterator)
        self._per_batch = 1 if items is None else getattr(getattr(iterator, torch_api.LOADER_INDICES), "batch_size", 1)

    def skip(self, count: int) -> int:
        """Leave out some batches and return how many were left out."""
        return super().skip(count * self._per_batch) // self._per_batch


class _Counted(SampledIterable):
    """An `enumerate`, an `itertools.count`, or the passes of a `while`, whose numbers run ahead of its iterator."""

    def __init__(self, iterator: Iterator[Any], inner: SampledIterable | None, step: Any = 1) -> None:
        self.total, self.is_free = (None, True) if inner is None else (inner.total, inner.is_free)
        self._iterator, self._inner, self._step, self._ahead = iterator, inner, step, 0

    def given(self, value: Any) -> Any:
        return value + self._ahead if self._inner is None else (value[0] + self._ahead, self._inner.given(value[1]))

    def skip(self, count: int) -> int:
        done = count if self._inner is None else self._inner.skip(count)
        self._ahead += done * self._step
        return done

    def moved(self, count: int) -> None:
        self._ahead += count * self._step
        if self._inner is not None:
            self._inner.moved(count)


class _Together(SampledIterable):
    """A `zip`."""

    def __init__(self, values: Any) -> None:
        self._parts = [source_of(one) for one in values.__reduce__()[1]]
        self.total = min((one.total for one in self._parts if one.total is not None), default=None)
        self.is_free = all(one.is_free for one in self._parts)
        self._iterator = values
        self._early = 0 if self.is_free else next(at for at, one in enumerate(self._parts) if not one.is_free)
        self._is_drawing = False
        self._newer: list[Any] = []

    def __next__(self) -> Any:
        self._is_drawing, self._newer = True, []
        value = super().__next__()
        self._is_drawing = False
        return value

    def given(self, value: Any) -> Any:
        given = [part.given(one) for part, one in zip(self._parts, value, strict=True)]
        return (*self._newer, *given[len(self._newer) :])

    def skip(self, count: int) -> int:
        return min(one.skip(count) for one in self._parts)

    def moved(self, count: int) -> None:
        for at, one in enumerate(self._parts):
            if self._is_drawing and at < self._early:  # it has given a value before the loader jumped
                one.skip(count - 1)
                self._newer.append(next(one))
            else:
                (one.skip if one.is_free else one.moved)(count)


class _Bar(SampledIterable):
    """A progress bar of tqdm."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._inner = bar, source_of(bar.iterable)
        self.total, self.is_free = self._inner.total, self._inner.is_free

    def __next__(self) -> Any:
        try:
            value = next(self._inner)
        except StopIteration:
            self._bar.close()
            raise
        self._bar.update(1)
        return value

    def skip(self, count: int) -> int:
        done = self._inner.skip(count)
        self._bar.update(done)
        return done

    def moved(self, count: int) -> None:
        self._inner.moved(count)
        self._bar.update(count)


def source_of(values: Any) -> SampledIterable:
    """Return the source of an iterable's values.

    Raises:
        TypeError: It is none.
    """
    kind = type(values)
    if kind is enumerate:
        return _Counted(values, source_of(values.__reduce__()[1][0]))
    if kind is zip and len(values.__reduce__()) == 2 and values.__reduce__()[1]:  # not a strict one
        return _Together(values)
    if kind is itertools.count:
        return _Counted(values, None, (*values.__reduce__()[1], 1)[1])
    if kind.__module__.startswith("tqdm.") and getattr(values, "iterable", None) is not None:
        return _Bar(values)
    return SampledIterable(values, is_free=kind in _FREE)


def passes() -> SampledIterable:
    """Return the source of the passes of a `while`."""
    return _Counted(itertools.repeat(0), None, 0)


def _length(values: Any) -> int | None:
    try:
        return len(values)
    except Exception:  # a length is the user's code
        hint = getattr(type(values), "__length_hint__", None)
        return hint(values) if hint is not None and isinstance(values, Iterator) else None
