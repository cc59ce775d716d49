"""Turns: what an expression will be in later passes agrees with its value, pass by pass."""

from __future__ import annotations

import ast
import math
import weakref
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.tracer.program.loop_sources import compiled, shown
from vramcast.tracer.program.turns import Turn, Turns


def turn_of(text: str, *, is_test: bool = True) -> Turn:
    return Turn(ast.parse(text, mode="eval").body, "job.py", is_test, None)


def series_of(turn: Turn, passes: list[dict[str, Any]]) -> deque[tuple[Any, ...]]:
    """Return the values of a turn's leaves at the ends of some passes."""
    return deque((tuple(eval(leaf, {}, dict(names)) for leaf in turn.leaves) for names in passes), maxlen=3)


def grown(names: dict[str, Any], growth: dict[str, Any], passes: int) -> dict[str, Any]:
    return {name: value + growth.get(name, 0) * passes if name in growth else value for name, value in names.items()}


FUNCTIONS = {
    "min": min,
    "max": max,
    "int": int,
    "abs": abs,
    "len": len,
    "math": math,
    "round": round,
    "float": float,
    "bool": bool,
}


def first_new(turn: Turn, names: dict[str, Any], growth: dict[str, Any], passes: int) -> int | None:
    """Evaluate the expression pass by pass, as the job does."""
    for after in range(1, passes + 1):
        value = eval(turn.text, dict(FUNCTIONS), grown(names, growth, after))
        if turn.is_test and turn.seen[bool(value)] < 2:
            return after
        if not turn.is_test and not turn.seen[value]:
            return after
    return None


def check(text: str, names: dict[str, Any], growth: dict[str, Any], passes: int = 2_000, *, is_test: bool = True) -> int | None:
    """Compare the next turn with the values of all passes, after three were seen."""
    turn = turn_of(text, is_test=is_test)
    before = [grown(names, growth, at) for at in range(3)]
    for one in before:
        turn.note(eval(text, dict(FUNCTIONS), one))
    found = turn.next_new(series_of(turn, before), passes)
    assert found == first_new(turn, before[-1], growth, passes)
    return found


@pytest.mark.parametrize(
    ("text", "names", "after"),
    [
        ("step == 5000", {"step": 0}, None),
        ("step == 500", {"step": 0}, 498),
        ("step % 500 == 499", {"step": 0}, 497),
        ("(step + 1) % 500 == 0", {"step": 0}, 497),
        ("not step % 100", {"step": 1}, 97),
        ("step >= 1999", {"step": 0}, 1997),
        ("step > 100 and step % 7 == 3", {"step": 0}, 99),
        ("step < 100 or step == 3", {"step": 0}, 98),
        ("100 < step < 200", {"step": 0}, 99),
        ("step in (900, 1700)", {"step": 0}, 898),
        ("step not in (1, 7)", {"step": 3}, 2),
        ("step & 1024", {"step": 0}, 1022),
        ("step >> 9", {"step": 1}, 509),
        ("step // 300 != 0", {"step": 0}, 298),
        ("step / total > 0.5", {"step": 0, "total": 1000}, 499),
        ("step == total - 1", {"step": 0, "total": 1000}, 997),
        ("-step < -99", {"step": 0}, 98),
        ("step is None", {"step": 1}, None),
        ("ready and step == 99", {"step": 0, "ready": True}, 97),
        ("ready and step == 99", {"step": 0, "ready": False}, None),
        ("step ** 2 > 10_000", {"step": 0}, 99),
        ("name == 'x' or step > 99", {"step": 0, "name": "y"}, 98),
        ("step > 99 if ready else step > 5", {"step": 0, "ready": 1}, 98),
        ("min(step, 60) == 60", {"step": 0}, 58),
        ("int(step * 0.01) == 3", {"step": 0}, 298),
        ("abs(step - 700) < 3", {"step": 0}, 696),
        ("len(kept) > 5", {"step": 0, "kept": "abc"}, None),
        ("step == 3", {"step": 0}, 1),
        ("step == 2", {"step": 0}, None),
    ],
)
def test_conditions_of_recipes(text: str, names: dict[str, Any], after: int | None) -> None:
    assert check(text, names, {"step": 1}) in {after, None if after is None else min(after, 1)}


_LEAVES = st.sampled_from(["step", "other", "still"])
_CONSTANTS = st.integers(-3, 40).map(lambda value: f"({value})")
_ATOMS = st.one_of(_LEAVES, _CONSTANTS)
_SUMS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["%", "//"]), st.integers(1, 30)),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
        st.builds("{}({})".format, st.sampled_from(["abs", "int", "-", "+"]), inner),
    ),
    max_leaves=4,
)
_COMPARISONS = st.builds("{} {} {}".format, _SUMS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), _SUMS)
_TESTS = st.one_of(
    _COMPARISONS,
    _SUMS,
    st.builds("not {}".format, _SUMS),
    st.builds("{} in (3, 17, 90)".format, _SUMS),
    st.builds("{} {} {}".format, _COMPARISONS, st.sampled_from(["and", "or"]), _COMPARISONS),
    st.builds("{} < {} <= {}".format, _SUMS, _SUMS, _SUMS),
    st.builds("({}) if ({}) else ({})".format, _COMPARISONS, _COMPARISONS, _SUMS),
)
_NAMES = st.fixed_dictionaries({"step": st.integers(0, 50), "other": st.integers(-100, 100), "still": st.integers(-5, 5)})
_GROWTH = st.fixed_dictionaries({"step": st.integers(1, 3), "other": st.integers(-4, 4)})


@given(text=_TESTS, names=_NAMES, growth=_GROWTH)
@settings(max_examples=150)
def test_the_next_turn_agrees_with_all_passes(text: str, names: dict[str, Any], growth: dict[str, Any]) -> None:
    if not set(turn_of(text).leaves) & {"step", "other"}:
        return
    check(text, names, growth, 150)


@given(text=_SUMS, names=_NAMES, growth=_GROWTH)
@settings(max_examples=150)
def test_the_next_size_agrees_with_all_passes(text: str, names: dict[str, Any], growth: dict[str, Any]) -> None:
    """Up to twenty sizes get a pass each."""
    text = f"({text}) % 5"
    if set(turn_of(text).leaves) & {"step", "other"}:
        check(text, names, growth, 150, is_test=False)


@given(text=_TESTS, names=_NAMES, growth=_GROWTH)
@settings(max_examples=100)
def test_counts_the_passes_in_which_it_is_true(text: str, names: dict[str, Any], growth: dict[str, Any]) -> None:
    turn = turn_of(text)
    moves = any(growth.get(leaf) for leaf in turn.leaves)
    series = series_of(turn, [grown(names, growth, at) for at in range(3)])
    last = grown(names, growth, 2)
    true = sum(bool(eval(text, dict(FUNCTIONS), grown(last, growth, after))) for after in range(1, 51))
    assert turn.hits(series, 50) == (true if moves else 0)
    assert turn.is_true(series[-1]) == bool(eval(text, dict(FUNCTIONS), last))


@pytest.mark.parametrize(
    ("text", "names", "after"),
    [
        ("min(64 * (1 + step // 200), 1024)", {"step": 0}, 198),
        ("sizes[step // 100]", {"step": 0, "sizes": [1, 2, 3] * 9}, 98),
        ("bisect(marks, step)", {"step": 0, "marks": [50, 90]}, 48),
        ("int(np.interp(step, (0, 1000), (1, 5)))", {"step": 0}, 248),
        ("max(1, 8 - step // 50)", {"step": 0}, 48),
        ("step // 1000", {"step": 0}, 998),
        ("round(step / 100)", {"step": 0}, 49),
        ("2 ** (step // 100)", {"step": 0}, 98),
    ],
)
def test_sizes_of_recipes(text: str, names: dict[str, Any], after: int) -> None:
    import bisect

    turn = turn_of(text, is_test=False)
    known = {**FUNCTIONS, "bisect": bisect.bisect, "np": np}
    turn.note(eval(text, known, dict(names)))
    series = series_of(turn, [grown(names, {"step": 1}, at) for at in range(3)])
    found = turn.next_new(series, 1_500)
    assert found == after
    before, new = (eval(text, known, grown(names, {"step": 1}, 2 + at)) for at in (after - 1, after))
    assert (turn.seen[before], turn.seen[new]) == (1, 0)


def test_of_many_sizes_the_largest_gets_a_pass() -> None:
    turn = turn_of("8 + (step * 37) % 1000", is_test=False)
    series = series_of(turn, [{"step": at} for at in range(3)])
    for at in range(3):
        turn.note(8 + at * 37 % 1000)
    after = turn.next_new(series, 5_000)
    assert after is not None
    assert 8 + ((2 + after) * 37) % 1000 == 1007
    turn.note(1007)
    assert turn.next_new(series, 5_000) is None


def test_one_turn_of_a_condition_is_not_enough() -> None:
    """The first time may allocate something for good; the second time shows it."""
    turn = turn_of("step % 100 == 99")
    for value in (False, False, True, False):
        turn.note(value)
    assert turn.next_new(series_of(turn, [{"step": at} for at in (100, 101, 102)]), 1_000) == 97
    turn.note(True)
    assert turn.next_new(series_of(turn, [{"step": at} for at in (200, 201, 202)]), 1_000) is None


@pytest.mark.parametrize("points", [(0, 1, 3), (0, 1, 1), (1, 1, 2), (5, 3, 4), (1, 2, "3"), (None, 1, 2), (0, 1, 2 + 1e-6)])
def test_an_uneven_number_predicts_nothing(points: tuple[Any, ...]) -> None:
    turn = turn_of("step == 500")
    assert turn.next_new(deque([(one,) for one in points], maxlen=3), 1_000) is None
    assert turn.hits(deque([(one,) for one in points], maxlen=3), 1_000) == 0


@pytest.mark.parametrize("text", ["step == model.limit", "f(step) == 3", "step == x[1:]", "step in kept", "step == 'x' + 1"])
def test_an_unknown_part_predicts_nothing(text: str) -> None:
    turns = Turns()
    turn = turn_of(text)
    series = deque([tuple(at if leaf == "step" else object() for leaf in turn.leaves) for at in range(3)], maxlen=3)
    assert turn.next_new(series, 100) is None
    assert turns.readings == 0


def test_a_number_far_away_is_found_once_it_is_near() -> None:
    turn = turn_of("step == 3_000_000")
    for _ in range(3):
        turn.note(False)
    assert turn.next_new(series_of(turn, [{"step": at} for at in range(3)]), 10**7) is None
    near = [{"step": 2_500_000 + at} for at in range(3)]
    assert turn.next_new(series_of(turn, near), 10**7) == 499_998


def test_fractions_count_without_drift() -> None:
    """Of `epoch + i / n`, each pass computes the value anew."""
    turn = turn_of("progress >= 1.0")
    for _ in range(3):
        turn.note(False)
    after = turn.next_new(series_of(turn, [{"progress": at * 0.01} for at in range(3)]), 1_000)
    assert after in (97, 98, 99)


def test_large_integers_are_no_error() -> None:
    turn = turn_of("step * scale > 10 ** 30")
    turn.note(False)
    assert turn.next_new(series_of(turn, [{"step": at, "scale": 10**25} for at in range(3)]), 200_000) in (None, 99_999)


def test_a_division_by_zero_is_no_error() -> None:
    turn = turn_of("10 % (step - 50) == 1")
    for _ in range(3):
        turn.note(False)
    turn.next_new(series_of(turn, [{"step": at} for at in range(3)]), 100)


def test_a_size_that_was_none_is_no_error() -> None:
    turn = turn_of("table[step]", is_test=False)
    turn.note(None)
    turn.note(3)
    table = [*range(100)]
    assert turn.next_new(series_of(turn, [{"step": at, "table": table} for at in range(3)]), 90) is not None


@pytest.mark.parametrize("text", ["step == 9", "step < 3 or step > 8", "n // 3"])
def test_keeps_the_order_of_evaluation(text: str) -> None:
    """NumPy computes all parts, so an error in the part that Python leaves out makes the value unknown at most."""
    turn = turn_of(text)
    assert turn.value(tuple("x" for _ in turn.leaves)) is not None


# ------------------------------------------------------------------------------------------------ inner and outer loops
def test_a_finer_loop_is_looked_at_pass_by_pass() -> None:
    """In an epoch of 100 steps, `step == 250` comes in the third epoch."""
    turn = turn_of("step == 1250")
    fine = [{"step": at} for at in (97, 98, 99)]
    for _ in range(3):
        turn.note(False)
    turn.next_new(series_of(turn, fine), 100)
    epochs = [{"step": at} for at in (99, 199, 299)]
    assert turn.next_new(series_of(turn, epochs), 100) == 10


# ------------------------------------------------------------------------------------------------ reading
class Reads:
    """Turns of a program that calls `end()` at the ends of its passes."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.now: list[dict[str, tuple[Any, ...]]] = []

    def end(self) -> None:
        self.now.append({turn.text: values for turn, (_, values) in self.turns.now.items()})
        self.turns.begin_pass()

    def run(self, source: str, **names: Any) -> dict[str, Any]:
        found = {"end": self.end, **names}
        with shown(lambda values: values, lambda: iter(int, 1), self.turns.come):
            exec(compiled(source, "job.py", "exec"), found)
        return found


@pytest.mark.parametrize(
    ("source", "text", "values"),
    [
        ("n = 3\nif n > 2: pass\nend()", "n > 2", (3,)),
        ("def f(n):\n if n > 2: end()\nf(5)", "n > 2", (5,)),
        (
            "class A:\n n = 3\n def f(self):\n  if self.n > len(self.x): end()\na = A()\na.x = [1]\na.f()",
            "self.n > len(self.x)",
            (3, 1),
        ),
        ("class A:\n __slots__ = ('n',)\na = A()\na.n = 7\nif a.n > 2: end()", "a.n > 2", (7,)),
        ("class A:\n @property\n def n(self): return 8\nif A().n == 8: pass\na = A()\nif a.n > 2: end()", "a.n > 2", (8,)),
        ("c = {'n': 4}\nif c['n'] > 2: end()", "c['n'] > 2", (4,)),
        ("def f():\n n = 3\n def g():\n  if n > 2: end()\n g()\nf()", "n > 2", (3,)),
        ("f = lambda n: 1 if n > 2 else 0\nf(6)\nend()", "n > 2", (6,)),
        ("x = [n for n in range(9) if n > 2]\nend()", "n > 2", (8,)),
        ("t = (1, 2)\nif t[0] in t: end()", "t[0] in t", (1, (1, 2))),
        ("if (n := 3) > 2: pass\nend()", "(n := 3) > 2", None),
    ],
)
def test_reads_the_parts_of_a_condition(source: str, text: str, values: Any) -> None:
    reads = Reads()
    reads.run(source)
    if values is None:
        assert [type(one) for one in reads.now[-1][text]] == [object]
    else:
        assert reads.now[-1][text] == values


def test_runs_no_code_of_the_job() -> None:
    reads = Reads()
    calls: list[str] = []

    class Odd:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return 3

        def __len__(self) -> int:
            calls.append("len")
            return 3

        def __getitem__(self, key: Any) -> Any:
            calls.append("item")
            return 3

    reads.run("if odd.n > 2: pass\nif len(odd) > 2: pass\nif odd['x'] > 2: pass\nend()", odd=Odd())
    assert calls == ["n", "len", "item"]


def test_keeps_no_object() -> None:
    class Dear:
        n = 3

    reads, dear = Reads(), Dear()
    alive = weakref.ref(dear)
    reads.run(
        "def f(x):\n if x is not None and x.n > 2 and x != 3: pass\n y = [x][len('')]\nf(made.pop())\nend()",
        made=[dear],
    )
    del dear
    assert alive() is None


def test_a_local_is_free_when_the_function_deletes_it() -> None:
    class Dear:
        pass

    made: list[weakref.ref[Any]] = []

    def dear() -> Any:
        one = Dear()
        made.append(weakref.ref(one))
        return one

    found = Reads().run(
        "def f():\n x = dear()\n if x is not None: pass\n del x\n return made[-1]() is None\nfree = f()",
        dear=dear,
        made=made,
    )
    assert found["free"]


def test_the_jobs_own_locals_stay() -> None:
    found = Reads().run("""
def train(lr, epochs):
    config = locals()
    for epoch in range(epochs):
        if epoch > 0: pass
    return dict(config)
config = train(1, 2)
""")
    assert (found["config"]["lr"], found["config"]["epochs"]) == (1, 2)


def test_variables_of_executed_code_stay() -> None:
    turns = Turns()
    names: dict[str, Any] = {}
    with shown(lambda values: values, lambda: iter(int, 1), turns.come):
        exec(compiled("n = 3\nif n > 2: m = 4\nm += n", "job.py", "exec"), {}, names)
    assert names == {"n": 3, "m": 7}


def test_a_long_inner_loop_is_read_in_part() -> None:
    reads = Reads()
    reads.run("for n in range(10_000):\n if n > 2: pass\nend()\nif n > 3: pass")
    assert reads.turns.readings < 200


def test_counts_each_value_of_a_condition() -> None:
    reads = Reads()
    reads.run("for n in range(6):\n if n > 3 or n == 1: pass\nend()")
    seen = {turn.text: dict(turn.seen) for turn in reads.turns.now}
    assert seen == {
        "n > 3 or n == 1": {False: 3, True: 3},
        "n > 3": {False: 4, True: 2},
        "n == 1": {False: 5, True: 1},
    }


def test_a_value_of_numpy_counts_as_a_number() -> None:
    turn = turn_of("n % 3", is_test=False)
    turn.note(np.int64(2))
    turn.note(np.array(2))
    turn.note(np.ones(3))
    assert dict(turn.seen) == {2: 2}


@pytest.mark.parametrize(
    ("source", "is_drawn"),
    [
        ("n = 128 if random.random() < 0.9 else 32", True),
        ("n = 1 if random.random() < 0.9 else 0", False),
        ("n = 128 if step < 0.9 else 32", False),
        ("n = f(128) if random.random() < 2 else f(32)", False),
        ("if random.random() < 0.9:\n    n = 128\nelse:\n    n = 32", True),
        ("if random.random() < 0.9: print(128)", False),
    ],
)
def test_a_drawn_size_with_one_value_is_a_doubt(source: str, is_drawn: bool) -> None:
    statement = ast.parse(source).body[0]
    owner = statement.value if isinstance(statement, ast.Assign) else statement
    assert isinstance(owner, ast.IfExp | ast.If)
    turn = Turn(owner.test, "job.py", True, owner)
    assert not turn.is_drawn
    turn.note(True)
    assert turn.is_drawn == is_drawn
    turn.note(False)
    assert not turn.is_drawn


def test_names_its_place() -> None:
    turn = Turn(ast.parse("\n\nx > 3").body[0].value, "job.py", True, None)  # type: ignore[attr-defined]
    assert (str(turn), turn.text) == ("job.py:3", "x > 3")
