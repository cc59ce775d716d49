"""Sources of a loop's values: they give the same values as the iterable, and can leave out some of them."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tqdm
from hypothesis import given
from hypothesis import strategies as st

from vramcast.tracer.hooks import torch_api
from vramcast.tracer.program.sources import Batches, SampledIterable, passes, source_of

BARRED: dict[str, Callable[[int], Any]] = {
    "range": range,
    "range down": lambda n: range(3 * n, 0, -3),
    "far range": lambda n: range(10**30, 10**30 + n),
    "range iterator": lambda n: iter(range(n)),
    "reversed range": lambda n: reversed(range(n)),
    "list": lambda n: [*range(n)],
    "list iterator": lambda n: iter([*range(n)]),
    "tuple": lambda n: (*range(n),),
    "str": lambda n: "".join(chr(97 + one % 26) for one in range(n)),
    "not only ASCII": lambda n: "".join(chr(200 + one) for one in range(n)),
    "bytes": lambda n: bytes(range(n)),
    "dict": lambda n: dict.fromkeys(range(n)),
    "items": lambda n: {one: -one for one in range(n)}.items(),
    "values": lambda n: {one: -one for one in range(n)}.values(),
    "ordered": lambda n: OrderedDict.fromkeys(range(n)),
    "set": lambda n: set(range(n)),
    "deque": lambda n: deque(range(n)),
    "array": np.arange,
    "generator": lambda n: (one * one for one in range(n)),
    "map": lambda n: map(str, range(n)),
    "islice": lambda n: itertools.islice(itertools.count(5), n),
    "chain": lambda n: itertools.chain(range(n // 2), range(n - n // 2)),
    "repeat": lambda n: itertools.repeat("x", n),
    "enumerate": lambda n: enumerate("x" * n, 7),
    "enumerate of a generator": lambda n: enumerate(one for one in range(n)),
    "enumerate of enumerate": lambda n: enumerate(enumerate(range(n)), -2),
    "zip": lambda n: zip(range(n), "x" * n, strict=False),
    "zip with a count": lambda n: zip(itertools.count(), [*range(n)]),
    "zip of one": lambda n: zip(range(n)),
    "strict zip": lambda n: zip(range(n), range(n), strict=True),
    "enumerate of zip": lambda n: enumerate(zip(range(n), range(1, n + 1), strict=False)),
    "tqdm": lambda n: tqdm.tqdm(range(n), disable=True),
    "tqdm of enumerate": lambda n: tqdm.tqdm(enumerate(range(n)), disable=True),
}
BACKWARDS: dict[str, Callable[[int], Any]] = {
    "reversed list": lambda n: reversed([*range(n)]),
    "reversed tuple": lambda n: reversed((*range(n),)),
    "reversed dict": lambda n: reversed(dict.fromkeys(range(n))),
}
ENDLESS: dict[str, Callable[[], Iterator[Any]]] = {
    "count": lambda: itertools.count(),
    "count by": lambda: itertools.count(3, -2),
    "count of fractions": lambda: itertools.count(0.5, 0.25),
    "cycle": lambda: itertools.cycle("abc"),
    "enumerate of cycle": lambda: enumerate(itertools.cycle("abc")),
}
# Left out and given values, in turn.
WAYS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=4)


def rest(source: SampledIterable) -> list[Any]:
    found = []
    while True:
        try:
            found.append(next(source))
        except StopIteration:
            return found


def compare(values: Any, plain: list[Any], way: list[tuple[int, int]]) -> None:
    """Check a way through a source against slices of its values."""
    source, at = source_of(values), 0
    for left_out, given_ in way:
        count = min(left_out, len(plain) - at)  # loops never leave out their last values
        assert source.skip(count) == count
        at += count
        for _ in range(min(given_, len(plain) - at)):
            assert next(source) == plain[at]
            at += 1
    assert rest(source) == plain[at:]


@pytest.mark.parametrize("name", BARRED)
@given(n=st.integers(0, 60), way=WAYS)
def test_leaving_out_values_equals_a_slice(name: str, n: int, way: list[tuple[int, int]]) -> None:
    compare(BARRED[name](n), [*BARRED[name](n)], way)


@pytest.mark.parametrize("name", BACKWARDS)
@given(n=st.integers(0, 60), way=WAYS)
def test_leaves_out_values_of_reversed_containers(name: str, n: int, way: list[tuple[int, int]]) -> None:
    compare(BACKWARDS[name](n), [*BACKWARDS[name](n)], way)


@pytest.mark.parametrize("name", ENDLESS)
@given(way=WAYS)
def test_leaves_out_values_of_endless_iterators(name: str, way: list[tuple[int, int]]) -> None:
    source, plain = source_of(ENDLESS[name]()), ENDLESS[name]()
    assert source.total is None
    for left_out, given_ in way:
        assert source.skip(left_out) == left_out
        assert [next(source) for _ in range(given_)] == [*itertools.islice(plain, left_out, left_out + given_)]


@pytest.mark.parametrize("name", [name for name in BARRED if name not in {"generator", "map", "islice", "chain"}])
def test_knows_its_length(name: str) -> None:
    known = source_of(BARRED[name](12)).total
    assert known == 12 or (known is None and "generator" in name) or name in {"strict zip"}


@pytest.mark.parametrize("name", BARRED)
def test_an_ended_source_stays_ended(name: str) -> None:
    source = source_of(BARRED[name](3))
    assert len(rest(source)) == 3
    source.skip(4)
    assert rest(source) == []


def test_a_billion_values_cost_nothing() -> None:
    source = source_of(enumerate(zip(range(10**12), itertools.count(4))))
    assert source.is_free
    assert source.skip(10**9) == 10**9
    assert next(source) == (10**9, (10**9, 10**9 + 4))


def test_draws_few_values_of_any_iterator() -> None:
    """Each may load data from a disk."""
    drawn: list[int] = []
    source = source_of(drawn.append(one) for one in itertools.count())  # type: ignore[func-returns-value]
    assert not source.is_free
    assert source.skip(10**6) < 10_000
    left_out = len(drawn)
    source.skip(10**6)
    assert len(drawn) == left_out


def test_an_iterator_keeps_its_place_outside_the_loop() -> None:
    values = iter(range(10))
    source = source_of(values)
    assert next(source) == 0
    source.skip(3)
    assert next(values) == 4
    assert next(source) == 5


def test_a_generator_ends_at_its_shortest_part() -> None:
    left, right = iter([1, 2, 3]), iter("a")
    assert rest(source_of(zip(left, right, strict=False))) == [(1, "a")]
    assert [*left] == [3]  # as `zip` itself does


@pytest.mark.parametrize(
    ("make", "following"),
    [
        (lambda: enumerate("abcd"), (2, "c")),
        (lambda: itertools.count(5), 7),
        (lambda: zip("abcd", range(4), strict=False), ("c", 2)),
        (lambda: iter([5, 6, 7]), 7),
        (lambda: itertools.islice("abcd", 4), "c"),
    ],
)
def test_the_job_goes_on_with_an_iterator_after_its_loop(make: Callable[[], Iterator[Any]], following: Any) -> None:
    """`for step in counter: ...break`, and the same counter again in the next epoch."""
    values = make()
    source = source_of(values)
    next(source), next(source)
    assert next(values) == following


@pytest.mark.parametrize("values", [None, 3, object(), int])
def test_rejects_what_is_not_iterable(values: Any) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        source_of(values)


class _Dear:
    pass


@pytest.mark.parametrize("wrap", [list, iter, lambda values: (one for one in values), enumerate, zip])
def test_keeps_no_value(wrap: Callable[[Any], Any]) -> None:
    made: list[weakref.ref[Any]] = []

    def values() -> Iterator[Any]:
        for _ in range(3):
            one = _Dear()
            made.append(weakref.ref(one))
            yield one
            del one

    source = source_of(values() if wrap is list else wrap(values()))
    for at in range(3):
        next(source)
        assert made[at]() is None or at == len(made) - 1  # a generator itself holds its last value


class _Hostile:
    """A container whose length is an error, or the job's own code."""

    def __init__(self, length: Any) -> None:
        self._length = length

    def __len__(self) -> int:
        if isinstance(self._length, Exception):
            raise self._length
        return self._length  # type: ignore[no-any-return]

    def __getitem__(self, at: int) -> int:
        if at >= 3:
            raise IndexError
        return at


@pytest.mark.parametrize("length", [ValueError("x"), NotImplementedError(), -1, "x"])
def test_survives_a_length_that_raises(length: Any) -> None:
    source = source_of(_Hostile(length))
    assert (source.total, rest(source)) == (None, [0, 1, 2])


def test_a_subclass_gives_its_own_values() -> None:
    class Doubled(list[int]):
        def __iter__(self) -> Iterator[int]:
            return (2 * one for one in super().__iter__())

    assert rest(source_of(Doubled([1, 2, 3]))) == [2, 4, 6]


def test_a_list_may_grow_while_it_is_read() -> None:
    values = [0]
    source = source_of(values)
    for one in range(1, 5):
        next(source)
        values.append(one)
    assert rest(source) == [4]


def test_a_dict_that_changes_raises() -> None:
    values = {1: 2}
    source = source_of(values)
    next(source)
    values[3] = 4
    with pytest.raises(RuntimeError, match="changed size"):
        next(source)


def test_an_error_of_a_generator_reaches_the_job() -> None:
    def values() -> Iterator[int]:
        yield 1
        raise KeyError("mine")

    source = source_of(values())
    next(source)
    with pytest.raises(KeyError, match="mine"):
        next(source)


# ------------------------------------------------------------------------------------------------ progress bars
@pytest.fixture
def bar(tmp_path: Any) -> Iterator[tqdm.tqdm[int]]:
    with (tmp_path / "bar").open("w") as file, tqdm.tqdm(range(100), file=file, mininterval=0, miniters=1) as made:
        yield made


def test_a_bar_counts_what_is_left_out(bar: tqdm.tqdm[int]) -> None:
    source = source_of(bar)
    assert (source.total, source.is_free) == (100, True)
    next(source)
    assert source.skip(50) == 50
    assert next(source) == 51
    assert bar.n in (51, 52)
    rest(source)
    assert bar.n == 100


def test_a_bar_is_closed_at_its_end(bar: tqdm.tqdm[int]) -> None:
    source = source_of(bar)
    rest(source)
    assert bar.disable  # tqdm's mark of a closed bar


def test_a_bar_without_values_is_only_updated(bar: tqdm.tqdm[int]) -> None:
    bar.iterable = None
    with pytest.raises(TypeError):
        rest(source_of(bar))


# ------------------------------------------------------------------------------------------------ other loops
def test_counts_what_its_iterator_has_left_out() -> None:
    """A data loader has jumped by itself; the numbers beside its batches follow."""
    source = source_of(enumerate(zip((one for one in "abcdef"), range(100), strict=False)))
    assert next(source) == (0, ("a", 0))
    source.moved(10)
    assert next(source) == (11, ("b", 11))


def test_passes_have_no_end() -> None:
    source = passes()
    next(source)
    assert (source.total, source.is_free, source.skip(10**15)) == (None, True, 10**15)
    next(source)


class _Loader:
    """An iterator of a data loader, by its parts that sources read."""

    def __init__(self, n: int, items: Iterator[Any] | None = None, batch_size: int = 4) -> None:
        self.drawn: list[int] = []
        setattr(self, torch_api.LOADER_SAMPLER, (self.drawn.append(one) or one for one in range(n)))
        setattr(self, torch_api.LOADER_FETCHER, SimpleNamespace(**{} if items is None else {"dataset_iter": items}))
        setattr(self, torch_api.LOADER_INDICES, SimpleNamespace(batch_size=batch_size))
        self._n = n

    def __len__(self) -> int:
        return self._n


@given(left_out=st.integers(0, 30))
def test_batches_are_drawn_from_the_sampler(left_out: int) -> None:
    loader = _Loader(20)
    source = Batches(loader)
    assert (source.total, source.is_free) == (20, True)
    assert source.skip(left_out) == min(left_out, 20)
    assert loader.drawn == [*range(min(left_out, 20))]


@given(n=st.integers(0, 100), left_out=st.integers(0, 30))
def test_items_of_an_iterable_data_set_make_batches(n: int, left_out: int) -> None:
    items = iter([*range(n)])
    source = Batches(_Loader(25, items))
    assert not source.is_free
    assert source.skip(left_out) == min(left_out, n // 4)
    assert len([*items]) == max(n - 4 * left_out, 0)
