"""Unknown numbers that the host has read: they behave like plain ones, and track their own use."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

torch: Any = pytest.importorskip("torch")

from vramcast.tracer.format.ledger import CallHandling  # noqa: E402
from vramcast.tracer.protocol.run_options import Answers  # noqa: E402
from vramcast.tracer.values.read_numbers import Decisions, DrawnFloat, DrawnInt, NumberOrigin, sizes_in  # noqa: E402


def kinds(decisions: Decisions) -> set[CallHandling]:
    """Return the kinds of decisions, including those found only at the end."""
    decisions.settle()
    return {kind for kind, _ in decisions.entries}


def floating(answers: Answers = "drawn", value: float = 0.5) -> tuple[Decisions, Any]:
    """Return a float that was read."""
    decisions = Decisions(answers)
    return decisions, decisions.number(value)


def whole(value: int = 7, *, has_most: bool = True) -> tuple[Decisions, Any]:
    """Return an int that was read."""
    decisions = Decisions("drawn")
    return decisions, decisions.number(value, has_most=has_most)


SHOWN: dict[str, Callable[[Any], Any]] = {
    "str": str, "repr": repr, "format": lambda x: f"{x:.3f}", "percent": lambda x: "%.3f" % x, "json": json.dumps,  # noqa: UP031
    "hash": hash, "tensor": lambda x: torch.tensor([x, x]).tolist(),
    "pickle": lambda x: type(pickle.loads(pickle.dumps(x))), "deepcopy": lambda x: copy.deepcopy({"loss": [x]})["loss"][0],
    "isinstance": lambda x: isinstance(x, float), "exp": math.exp, "isnan": math.isnan, "mean": lambda x: sum([x, x]) / 2,
    "rounded": lambda x: round(x, 2), "ratio": lambda x: str(x.as_integer_ratio()), "infinite": lambda x: x < math.inf,
    "itself": lambda x: x != x, "multiplied": lambda x: [3 * x, x * 3, x - 1, 1 - x, -x, abs(x), x**2, 2 // x, x % 2],
}  # fmt: skip


@pytest.mark.parametrize("use", SHOWN.values(), ids=SHOWN.keys())
def test_shown_float_is_plain_and_decides_nothing(use: Callable[[Any], Any]) -> None:
    decisions, number = floating()
    found = use(number)
    assert kinds(decisions) == set()
    assert found == use(0.5)


def test_point_of_a_chart_decides_nothing() -> None:
    where = Path(torch.__file__).with_name("utils") / "tensorboard" / "_convert_np.py"  # its package needs tensorboard
    chart = runpy.run_path(str(where))
    decisions, number = floating()
    assert chart["make_np"](number).tolist() == [0.5]
    assert kinds(decisions) == set()


def test_checkpoint_has_plain_numbers() -> None:
    _, number = floating()
    file = io.BytesIO()
    torch.save({"loss": number, "k": whole()[1]}, file)
    file.seek(0)
    found = torch.load(file, weights_only=True)
    assert (found, type(found["loss"]), type(found["k"])) == ({"loss": 0.5, "k": 7}, float, int)


COMPARED: dict[str, Callable[[Any], Any]] = {
    "less": lambda x: x < 1e-3, "the other side": lambda x: x < 1e-3, "at most": lambda x: x <= 0.5, "equal": lambda x: x == 0,
    "truth": bool, "not": lambda x: not x, "derived": lambda x: (x * 2 + 1) / 3 > 10, "min": lambda x: min(x, 0.1) == 0.1,
    "rounded": lambda x: round(x) == 1, "of the mean": lambda x: sum([x, x, x]) / 3 < 0.4,
}  # fmt: skip


@pytest.mark.parametrize("ask", COMPARED.values(), ids=COMPARED.keys())
def test_compared_float_decides_and_flips_in_further_run(ask: Callable[[Any], Any]) -> None:
    decisions, number = floating()
    answer = ask(number)
    assert answer == ask(0.5)
    assert kinds(decisions) == {CallHandling.DECIDED}
    other, flipped = floating("otherwise")
    assert ask(flipped) != answer or ask is COMPARED["min"]
    assert kinds(other) == {CallHandling.DECIDED}


@pytest.mark.parametrize("convert", [int, float, lambda x: int(x * 100) + 1, lambda x: numpy.mean([x, x]).item()])
def test_float_made_plain_is_unfollowed(convert: Callable[[Any], Any]) -> None:
    decisions, number = floating()
    kept = convert(number)
    assert type(kept) in (int, float)
    assert kinds(decisions) == {CallHandling.UNFOLLOWED}
    decisions, number = floating()
    print(float(number), f"{float(number):.3f}")
    assert kinds(decisions) == set()


@pytest.mark.parametrize(
    ("make", "has_most"),
    [
        (lambda k: k, True), (lambda k: k + 1, True), (lambda k: 10 - k, True), (lambda k: k // 2 * 3, True),
        (lambda k: k << 20, True), (lambda k: k + k, True), (lambda k: math.ceil(k * 0.5), True), (lambda k: k - k, False),
        (lambda k: k % 5, False), (lambda k: k * k, True),
    ],
)  # fmt: skip
def test_monotone_size_from_count_has_largest(make: Callable[[Any], Any], has_most: bool) -> None:
    decisions, number = whole()
    size = make(number)
    assert type(size) is DrawnInt
    assert size == make(7)
    decisions.entries.clear()
    decisions.sized("empty", sizes_in("empty", (size,), {}))
    assert kinds(decisions) == ({CallHandling.LARGEST, CallHandling.SMALLEST} if has_most else {CallHandling.OPEN})


def test_unseen_count_may_be_loop_length() -> None:
    decisions, number = whole()
    assert len(range(number)) == 7
    assert kinds(decisions) == {CallHandling.SMALLEST}
    decisions, number = whole(has_most=False)
    assert len(range(number)) == 7
    assert kinds(decisions) == {CallHandling.UNFOLLOWED}


def test_summed_and_shown_counts_decide_nothing() -> None:
    decisions = Decisions("drawn")
    correct = 0
    for _ in [1, 2, 3]:
        correct += decisions.number(5, has_most=True)
    assert f"{100.0 * correct / 64:.1f} %" == "23.4 %"
    assert kinds(decisions) == set()


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("empty", lambda k, f: ((k, 4), {}), 1), ("view", lambda k, f: ((torch.zeros(1), k, -1), {}), 1),
        ("zeros", lambda k, f: ((), {"size": [k]}), 1), ("__getitem__", lambda k, f: ((torch.zeros(9), slice(None, k)), {}), 1),
        ("__getitem__", lambda k, f: ((torch.zeros(9), (k, slice(0, 2))), {}), 0), ("full", lambda k, f: (((2,), k), {}), 0),
        ("full", lambda k, f: (((k,), f), {}), 1), ("mul", lambda k, f: ((torch.zeros(9), k), {}), 0),
        ("__rtruediv__", lambda k, f: ((torch.zeros(9), f), {}), 0), ("add_", lambda k, f: ((torch.zeros(9), k), {}), 0),
        ("dropout", lambda k, f: ((torch.zeros(9), f), {}), 0), ("arange", lambda k, f: ((f,), {}), 1),
        ("split", lambda k, f: ((torch.zeros(9), [k, 2]), {}), 1), ("tensor", lambda k, f: (([k, f],), {}), 0),
    ],
)  # fmt: skip
def test_finds_arguments_that_may_be_sizes(name: str, make: Callable[..., Any], expected: int) -> None:
    decisions = Decisions("drawn")
    args, kwargs = make(decisions.number(3, has_most=True), decisions.number(0.5))
    assert len(sizes_in(name, args, kwargs)) == expected


def test_loop_that_exhausts_drawn_numbers_is_open() -> None:
    decisions, number = floating()
    for _ in range(200):
        assert number > 1e-3
    decisions.exhausted()
    assert CallHandling.OPEN in kinds(decisions)
    quiet, number = floating()
    assert number > 1e-3
    quiet.exhausted()
    assert CallHandling.OPEN not in kinds(quiet)


def test_other_values_stay_unchanged() -> None:
    decisions = Decisions("drawn")
    for value in (True, None, "text", 1j):
        assert decisions.number(value) is value
    assert not decisions.are_there
    assert isinstance(DrawnFloat(1.5, NumberOrigin(decisions, "", has_most=False)) + 1, DrawnFloat)
    assert (torch.ones(2) * floating()[1]).tolist() == [0.5, 0.5]
    assert (floating()[1] * torch.ones(2)).tolist() == [0.5, 0.5]
    assert [0] * whole(2)[1] == [0, 0]
