"""Sources with shown loops and conditions compute what they computed before."""

from __future__ import annotations

import ast
import builtins
import gc
import importlib
import inspect
import runpy
import sys
import textwrap
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.tracer.program import loop_sources
from vramcast.tracer.program.loop_sources import compiled, shown
from vramcast.tracer.program.sources import passes, source_of


class Seen:
    """Calls of the built-in functions."""

    def __init__(self) -> None:
        self.loops = self.whiles = 0
        self.turns: list[tuple[str, Any]] = []

    def loop(self, values: Any) -> Iterator[Any]:
        self.loops += 1
        return _each(source_of(values))

    def passes(self) -> Iterator[Any]:
        self.whiles += 1
        return _each(passes())

    def turn(self, number: int, value: Any) -> Any:
        self.turns.append((ast.unparse(loop_sources.expressions[number].node), value))
        return value


def _each(source: Any) -> Iterator[Any]:
    while True:
        try:
            yield next(source)
        except StopIteration:
            return


@pytest.fixture
def seen() -> Iterator[Seen]:
    made = Seen()
    with shown(made.loop, made.passes, made.turn):
        yield made


def outcome(code: Any) -> tuple[dict[str, Any], str]:
    """Return the variables that a module leaves, without its functions, and its error."""
    names: dict[str, Any] = {"__name__": __name__, "out": []}
    try:
        exec(code, names)
        error = ""
    except Exception as raised:
        lines = [one.lineno for one in traceback.extract_tb(raised.__traceback__) if one.filename == "job.py"]
        error = f"{raised!r} {lines}"
    plain = (int, float, str, bool, list, tuple, dict, set, type(None))
    return {name: value for name, value in names.items() if type(value) in plain and not name.startswith("__")}, error


def same(source: str) -> dict[str, Any]:
    """Check that a module computes the same if it is shown, and return what it leaves."""
    source = textwrap.dedent(source)
    plain = outcome(compile(source, "job.py", "exec", dont_inherit=True))
    assert outcome(compiled(source, "job.py", "exec")) == plain
    return plain[0]


PROGRAMS = {
    "else of a for": """
        for n in range(3):
            if n == 2: break
        else: out.append("never")
        for n in range(3):
            if n == 5: break
        else: out.append("always")
        for n in []: pass
        else: out.append("empty")
    """,
    "else of a while": """
        n = 0
        while n < 3:
            n += 1
        else: out.append(n)
        while True:
            n += 1
            if n > 7: break
        else: out.append("never")
        while n > 100: pass
        else: out.append("at once")
    """,
    "continue": """
        n = 0
        while n < 9:
            n += 1
            if n % 3: continue
            for m in range(n):
                if m & 1: continue
                out.append((n, m))
            else: continue
            out.append("never")
    """,
    "break out of loops in loops": """
        while True:
            while True:
                for n in range(5):
                    if n == 3: break
                else: continue
                break
            out.append(n)
            if len(out) == 3: break
    """,
    "loop variables stay": """
        for n in range(4): pass
        for a, (b, *c) in [(1, (2, 3, 4))]: pass
        for out_of in (x for x in "ab"): pass
    """,
    "targets": """
        class Box: pass
        box, items = Box(), {}
        for box.at in range(3): out.append(box.at)
        for items["k"] in "ab": pass
        for *head, tail in [(1, 2, 3)]: out.append((head, tail))
        found = vars(box)
    """,
    "stars": """
        for n in *range(2), *"ab": out.append(n)
        a, b = [1, 2], {"x": 3}
        def f(*args, **kwargs): return args, kwargs
        out.append(f(*(n for n in a if n > 1), **{k: v for k, v in b.items()}))
        out.append(max(*a, 7)); out.append([*a, *(n % 2 for n in a)])
    """,
    "try and finally": """
        def f():
            for n in range(5):
                try:
                    if n == 1: continue
                    if n == 3: return n
                    out.append(n)
                finally: out.append(-n)
        out.append(f())
        n = 0
        while True:
            try:
                n += 1
                if n == 4: raise KeyError(n)
            except KeyError as error:
                out.append(error.args); break
            finally: out.append("f")
    """,
    "generators are closed": """
        def numbers():
            try:
                n = 0
                while True:
                    yield n
                    n += 1
            finally: out.append("closed")
        for n in numbers():
            if n == 2: break
        out.append("after")
        def first():
            for n in numbers(): return n
        out.append(first()); out.append("after")
        try:
            for n in numbers(): raise ValueError(n)
        except ValueError as error: out.append(str(error))
        out.append(next(n for n in numbers() if n > 3)); out.append("after")
    """,
    "generators that receive": """
        def echo():
            got = None
            while (got := (yield got)) != "stop":
                for n in range(2):
                    other = yield (got, n)
                    if other: out.append(other)
            return "end"
        def outer(): out.append((yield from echo()))
        g = outer(); out.append(next(g))
        for one in ("a", 1, 2, "b", "c", None, "stop"):
            try: out.append(g.send(one))
            except StopIteration: out.append("over")
        def thrown():
            while True:
                try: yield 1
                except KeyError: out.append("caught")
        t = thrown(); next(t); out.append(t.throw(KeyError())); t.close()
    """,
    "closures": """
        def outer():
            n = 0
            def step():
                nonlocal n
                n += 1
                return n < 4
            while step():
                made = [lambda m=m: (m, n) for m in range(n) if m <= n]
                out.append([one() for one in made])
            return n
        out.append(outer())
        def late(): return [f() for f in [lambda: n for n in range(3)]]
        out.append(late())
    """,
    "lambdas": """
        f = lambda n: "big" if n > 3 else [m for m in range(n) if m % 2]
        out += [f(2), f(5), (lambda *a, k=1 if out else 2: (a, k))(1)]
        out.append(sorted([3, 1, 2], key=lambda n: -n if n > 1 else n))
    """,
    "walrus": """
        values = iter([1, 2, 3, 0, 9])
        while (n := next(values)) > 0: out.append(n)
        if (m := len(out)) > 2 and (k := m * 2) < 9: out.append(k)
        found = [y for x in range(5) if (y := x * x) > 3 and (last := y)]
        out.append((lambda: (z := 3) + z if (w := 1) < 2 else 0)())
        def f():
            total = 0
            any((hit := x) > 2 for x in range(9))
            return hit
        out.append(f())
    """,
    "comprehensions": """
        out += [x for x in range(3)] + [(x, y) for x in range(3) if x for y in range(x) if y != 1]
        out.append({x % 2 for x in range(9)}); out.append({k: v for k, v in zip("ab", range(2)) if v == 1})
        out.append([[c for c in row if c > "a"] for row in ("abc", "bca")])
        x = "kept"; [x for x in range(3)]
        def f(n): return [n + m for m in range(n) if m < n]
        out.append(f(3))
    """,
    "class bodies": """
        class A:
            sizes = [n for n in range(4) if n > 1]
            total = 0
            for n in sizes:
                total += n
            while total > 3: total -= 1
            if total == 3:
                def method(self): return [n for n in self.sizes if n == 3]
            class B:
                def inner(self):
                    for n in range(2): out.append(n)
            def __private(self): return 1 if self.total > 1 else 2
            def call(self): return self.__private()
        a = A(); out += [a.sizes, a.total, a.method(), A.B().inner(), a.call()]
    """,
    "super and class cells": """
        class A:
            def f(self, n): return n
        class B(A):
            def f(self, n):
                for m in range(1): n = super().f(n) + m
                return __class__.__name__ if n > 5 else n
        out += [B().f(1), B().f(9)]
    """,
    "annotations": """
        from __future__ import annotations
        import dataclasses, typing
        @dataclasses.dataclass
        class Config:
            n: int = 1 if 2 > 1 else 0
            names: list[str] = dataclasses.field(default_factory=lambda: [c for c in "ab"])
            late: Undefined[x > 3] | None = None
            def run(self, x: Nowhere = 3 % 2) -> Never[int]:
                y: int
                z: Missing[y % 2] = 5 % 3
                return (self.n, x, z)
        out += [Config().run(), str(Config()), Config.__annotations__, Config.run.__annotations__]
        k: Undefined = 4 // 3
        out.append(__annotations__)
    """,
    "annotations with values": """
        import typing
        def f(a: typing.Optional[int] = None, *b: list[int]) -> dict[str, int]:
            c: typing.List[int] = [n for n in b]
            return c
        out += [f(1, 2), str(f.__annotations__)]
        T = typing.TypeVar("T"); V = list[T]
        class G(typing.Generic[T]):
            v: V[int]
        out += [str(V), str(G[int]), str(typing.get_type_hints(G))]
    """,
    "decorators": """
        import functools
        def twice(times):
            def wrap(f):
                @functools.wraps(f)
                def run(*a):
                    return [f(*a) for _ in range(times)]
                return run
            return wrap
        @twice(2 if 3 > 2 else 5)
        @functools.lru_cache(maxsize=4 // 2)
        def f(n):
            while n < 10: n += 3
            return n
        out += [f(1), f.__name__]
        class A:
            @property
            def p(self): return 1 if out else 2
            @staticmethod
            def s():
                for n in range(2): pass
                return n
            @classmethod
            def c(cls): return [n for n in "a"]
        out += [A().p, A.s(), A.c()]
    """,
    "match": """
        def f(x):
            match x:
                case [a, b] if a > b: return "falling"
                case {"n": int(n)}:
                    while n > 3: n -= 1
                    return n
                case str() | bytes(): return [c for c in x]
                case (1 | 2) as y: return y
                case _: return None
        out += [f([2, 1]), f([1, 2]), f({"n": 9}), f("ab"), f(2), f(None)]
    """,
    "f-strings": """
        n, w = 7, 9
        out += [f"{n % 4 == 3!r:>{w}}", f"{n if n > 3 else 0:0{w // 2}d}", f"{n=} {n>3=}", f"{[m for m in range(n) if m % 3]}"]
        out.append("%d %s" % (n, "x")); out.append("%s" % n)
    """,
    "evaluated once": """
        def f(n):
            out.append(n)
            return n
        if f(1) < f(2) < f(3): pass
        if f(5) < f(4) < f(3): pass
        f(1) if f(0) else f(2)
        x = f(1) % 2 and f(9); y = [1, 2, 3][f(1)]; z = max(f(4), f(5)); a = f(0) or f(8) > 1
        for n in f([1, 2]): f(n)
        x = 1 < 2 if f(3) == 3 else f(4)
    """,
    "values of conditions": """
        a = 3 and []; b = 0 or "x"; c = [] == (); d = not 3 > 2; e = 1 if "" else 2
        class Odd:
            def __eq__(self, other): return "eq"
            def __lt__(self, other): return []
            def __bool__(self): out.append("bool"); return True
        f = Odd() == 1; g = Odd() < 2; h = Odd() < 2 < 3
        if Odd(): pass
        while Odd(): break
        i = 5 if Odd() else 6
    """,
    "globals": """
        total = 0
        def f():
            global total
            for n in range(5):
                if n % 2: total += n
        f()
        def g():
            del total_2
        if total == 4: total_2 = 1
    """,
    "deleted and unbound": """
        def f():
            for n in range(2):
                if n == 1:
                    del n
            return n
        try: f()
        except UnboundLocalError as error: out.append(type(error).__name__)
        x = {1: 2, 3: 4}
        k = 1
        del x[k]
        x[k + 2 if x else 0] += 1
    """,
    "subscripts": """
        x = [[1, 2], [3, 4]]; i = 1
        out += [x[i][i - 1], x[-i], x[i:], x[i // 2], {(0, 1): "t"}[0, i], "abc"[i % 2]]
        x[i][i % 2], x[0] = 5, x[i]
        x[(j := 0)] = x[(j := 1)]
    """,
    "an error in a condition": """
        def f(n):
            if n > 0:
                return 1 / (n - n)

        f(1)
    """,
    "an error in a test": """
        n = 3
        while (
            n > 0
            and 1 // (n - 1) >= 0
        ):
            n -= 1
    """,
    "not iterable": """
        for n in range(2):
            for m in n:
                pass
    """,
    "not iterable in a comprehension": """
        out.append(1)
        x = [n for n in 3]
    """,
    "an error of a generator": """
        def g():
            yield 1
            raise KeyError("mine")
        for n in g():
            out.append(n)
    """,
    "StopIteration in a body": """
        def g():
            for n in range(2):
                yield n
                next(iter([]))
        for n in g(): out.append(n)
    """,
    "a shared iterator": """
        it = iter(range(10))
        for n in it:
            if n == 3: break
        out += [*it]
        lines = iter("abcdef")
        for a in lines: out.append(a + next(lines))
    """,
    "changing containers": """
        values = [1]
        for n in values:
            if n < 6: values.append(n + 1)
        d = {1: 1}
        for k in d: d[k + 1] = 1
    """,
    "endless": """
        import itertools
        for n in itertools.count(2, 3):
            if n > 9: break
        for n, m in enumerate(itertools.cycle("ab"), 1):
            if n > 4: break
        while 1:
            n += 1
            if n == 9: break
        while "x" and n: n -= 1
        while 0: out.append(1)
        while not n: n = 1
    """,
    "async": """
        import asyncio
        async def numbers():
            for n in range(3): yield n
        async def main():
            out.extend([n async for n in numbers() if n != 1])
            async for n in numbers():
                if n > 1: break
            while n < 5: n += 1
            return [m for m in range(n) if await asyncio.sleep(0, m > 2)]
        out.append(asyncio.run(main()))
    """,
    "exec and eval": """
        exec("for n in range(3):\\n    if n > 1: out.append(n)")
        x = eval("[n for n in range(4) if n % 2]")
    """,
    "names of the language": """
        match, case, type, _ = [1], 2, 3, 4
        match[0] = 5
        print_ = [case for case in match if case == 5]
        for _ in range(2): pass
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_computes_the_same(name: str, seen: Seen) -> None:
    same(PROGRAMS[name])
    if name not in {"class bodies", "names of the language", "exec and eval", "async", "decorators"}:
        assert seen.loops + seen.whiles + len(seen.turns), "nothing was shown"


@pytest.mark.parametrize("make", ["enumerate('abcdef')", "itertools.count()"])
def test_a_loop_goes_on_where_an_earlier_one_broke(make: str, seen: Seen) -> None:
    same(f"""
        import itertools
        steps = {make}
        for epoch in range(2):
            for n in steps:
                if len(out) % 2: break
                out.append(n)
            out.append("epoch")
    """)


# ------------------------------------------------------------------------------------------------ random programs
_NUMBERS = st.sampled_from(["a", "b", "c", "0", "1", "2", "3", "len(out)"])
_SUMS = st.one_of(
    _NUMBERS,
    st.builds("({} {} {})".format, _NUMBERS, st.sampled_from(["+", "-", "%", "//"]), _NUMBERS),
    st.builds("max({}, {})".format, _NUMBERS, _NUMBERS),
    st.builds("[1, 2, 3][{}]".format, _NUMBERS),
    st.builds("len([x for x in range({} % 5) if x % 2 != {}])".format, _NUMBERS, _NUMBERS),
    st.builds("sum(x * {} for x in range(3) if x > {})".format, _NUMBERS, _NUMBERS),
    st.builds("(lambda x=1: x if {} else -x)()".format, _NUMBERS),
    st.builds("(c := {} + 1)".format, _NUMBERS),
)
_TESTS = st.one_of(
    st.builds("{} {} {}".format, _SUMS, st.sampled_from(["<", "==", "!=", ">=", "< a <", "is not", "in range(3) or"]), _SUMS),
    st.builds("not {}".format, _NUMBERS),
    st.builds("{} and {} % 2".format, _NUMBERS, _NUMBERS),
    _NUMBERS,
)
_ITERABLES = st.sampled_from(
    [
        "range(3)",
        "[a, b, 3]",
        "enumerate('xy')",
        "zip(range(3), 'abcd')",
        "(y + a for y in range(3))",
        "'ab'",
        "{1: 2, 3: 4}",
        "{1: 2}.items()",
        "numbers(3)",
        "iter((4, 5))",
        "reversed([1, 2, 3])",
        "map(str, range(2))",
    ]
)


def _block(lines: list[list[str]]) -> list[str]:
    return ["    " + line for part in lines for line in part] or ["    pass"]


def _statements(depth: int, *, in_loop: bool) -> st.SearchStrategy[list[str]]:
    ends = ["break", "continue"] if in_loop else []
    simple = [
        st.builds(lambda name, value: [f"{name} = {value}"], st.sampled_from("abc"), _SUMS),
        st.builds(lambda name, value: [f"{name} += {value}"], st.sampled_from("abc"), _NUMBERS),
        st.builds(lambda value: [f"out.append({value})"], _SUMS),
        st.builds(lambda test: [f"out.append({test})"], _TESTS),
        *([st.builds(lambda test, end: [f"if {test}: {end}"], _TESTS, st.sampled_from(ends))] if ends else []),
    ]
    if not depth:
        return st.one_of(simple)
    inner, body = _blocks(depth - 1, in_loop=in_loop), _blocks(depth - 1, in_loop=True)
    other = _blocks(depth - 1, in_loop=False)
    orelse = st.one_of(st.just([]), inner.map(lambda lines: ["else:", *lines]))
    return st.one_of(
        *simple,
        st.builds(lambda test, yes, no: [f"if {test}:", *yes, *no], _TESTS, inner, orelse),
        st.builds(lambda values, lines, no: [f"for v in {values}:", *lines, *no], _ITERABLES, body, orelse),
        st.builds(
            lambda test, lines, no: [f"w{depth} = 0", f"while w{depth} < 4 and ({test}):", f"    w{depth} += 1", *lines, *no],
            _TESTS,
            body,
            orelse,
        ),
        st.builds(
            lambda lines, test: [
                f"w{depth} = 0",
                "while True:",
                f"    w{depth} += 1",
                f"    if w{depth} > 4 or {test}: break",
                *lines,
            ],
            body,
            _TESTS,
        ),
        st.builds(
            lambda lines: ["try:", *lines, "except Exception as e: out.append(type(e).__name__)", "finally: a += 1"], inner
        ),
        st.builds(
            lambda lines: [
                "def f(a):",
                "    global w1, w2, w3",
                "    nonlocal b",
                "    c = 1",
                *lines,
                "    return a + c",
                "out.append(f(2))",
            ],
            other,
        ),
    )


def _blocks(depth: int, *, in_loop: bool) -> st.SearchStrategy[list[str]]:
    return st.lists(_statements(depth, in_loop=in_loop), min_size=1, max_size=3).map(_block)


_HEAD = """
out = []
w1 = w2 = w3 = 0
def numbers(n):
    try:
        for m in range(n): yield m
    finally: out.append("closed")
def main(a, b, c):
"""


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # `a is not 0`
@given(lines=_blocks(3, in_loop=False))
@settings(max_examples=60)
def test_random_programs_compute_the_same(lines: list[str]) -> None:
    source = "\n".join([_HEAD.strip(), "    global w1, w2, w3", *lines, "    return a, b, c", "result = main(1, 2, 3)"])
    seen = Seen()
    with shown(seen.loop, seen.passes, seen.turn):
        same(source)


# ------------------------------------------------------------------------------------------------ what is shown
def test_shows_loops_and_conditions(seen: Seen) -> None:
    same("""
        for step in range(3):
            if step % 2 == 1: out.append(step)
            size = min(64 * (1 + step // 2), 100)
        while step > 0: step -= 1
    """)
    assert (seen.loops, seen.whiles) == (1, 1)
    assert seen.turns == [
        *(
            pair
            for step in range(3)
            for pair in (("step % 2 == 1", step % 2 == 1), ("min(64 * (1 + step // 2), 100)", min(64 * (1 + step // 2), 100)))
        ),
        ("step > 0", True),
        ("step > 0", True),
        ("step > 0", False),
    ]


def test_tests_of_a_size_are_no_conditions(seen: Seen) -> None:
    first = len(loop_sources.expressions)
    same("""
        step, table = 3, [1, 2]
        a = step if step > 2 else 0
        b = table[step % 2]
        if step: pass
        c = step % 2
    """)
    found = {ast.unparse(one.node): (one.is_test, type(one.owner)) for one in loop_sources.expressions[first:]}
    assert found["step > 2"] == (True, ast.IfExp)
    assert found["table[step % 2]"] == (False, type(None))
    assert found["step"] == (True, ast.If)
    assert found["step % 2"] == (False, type(None))


def test_nothing_is_shown_where_code_is_compiled_otherwise(seen: Seen) -> None:
    same("""
        def jit(f): return f
        class torch: compile = script = staticmethod(lambda f=None, **k: f or (lambda f: f))
        @jit
        def one(n):
            while n < 3: n += 1
            return n if n == 3 else [m for m in range(n)]
        @torch.compile(mode="x")
        def two(n):
            def inner():
                for m in range(n): pass
            inner()
        @torch.script
        def three(n): return n > 2
        out += [one(1), two(1), three(1)]
    """)
    assert (seen.loops, seen.whiles, seen.turns) == (0, 0, [])


@pytest.mark.parametrize("source", ["for x in", "if x = 3: pass", "return", "x = 1\n  y = 2", "break", "\0", "f(**a, *b)"])
def test_an_error_of_syntax_is_the_usual_one(source: str, seen: Seen) -> None:
    with pytest.raises((SyntaxError, ValueError)) as plain:
        compile(source, "job.py", "exec")
    with pytest.raises(type(plain.value)) as found:
        compiled(source, "job.py", "exec")
    assert str(found.value) == str(plain.value)
    assert traceback.format_exception_only(found.value) == traceback.format_exception_only(plain.value)


@pytest.mark.parametrize(
    "source",
    [
        b"# -*- coding: latin-1 -*-\nx = '\xe9' if 2 > 1 else ''",
        "\ufeffx = 3 > 2".encode(),
        "x = 1\r\nif x > 0:\r\n    y = 2\r\n",
    ],
)
def test_reads_bytes_as_python_does(source: Any, seen: Seen) -> None:
    assert outcome(compiled(source, "job.py", "exec")) == outcome(compile(source, "job.py", "exec"))


def test_deep_expressions_stay_as_they_are(seen: Seen) -> None:
    source = "x = " + "+".join(["1"] * 1200) + "\ny = " + "(" * 80 + "1 > 0" + ")" * 80
    assert outcome(compiled(source, "job.py", "exec"))[0] == {"out": [], "x": 1200, "y": True}


def test_code_object_names_the_file(seen: Seen) -> None:
    code = compiled("def f():\n    for n in range(2):\n        if n > 1: pass\n", Path("/tmp/x.py"), "exec")
    assert code.co_filename == "/tmp/x.py"


# ------------------------------------------------------------------------------------------------ lifetimes
class _Dear:
    pass


def lifetime(source: str) -> list[bool]:
    """Run a shown module that calls `dear()` for an object and `alive()`, and return what `alive` said."""
    made: list[weakref.ref[Any]] = []
    said: list[bool] = []

    def dear() -> Any:
        one = _Dear()
        made.append(weakref.ref(one))
        return one

    names = {"dear": dear, "alive": lambda: said.append(made[-1]() is not None)}
    gc.disable()
    try:
        exec(compiled(textwrap.dedent(source), "job.py", "exec"), names)
    finally:
        gc.enable()
    return said


def test_an_object_of_a_condition_is_not_kept() -> None:
    seen = Seen()
    with shown(seen.loop, seen.passes, lambda number, value: value):
        assert (
            lifetime("""
            if dear() is not None: alive()
            x = dear()
            if x is not None and x != 3:
                del x
                alive()
            [dear()][len("")]
            alive()
            while dear():
                alive()
                break
            for n in [1]: dear()
            alive()
        """)
            == [False] * 5
        )


# ------------------------------------------------------------------------------------------------ modules
@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """Return a function that writes a module of the job and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {*sys.modules}

    def write(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return name

    yield write
    for name in {*sys.modules} - before:
        del sys.modules[name]


MODULE = '''
"""Doc."""
import dataclasses

def loop(n):
    """Count."""
    found = []
    for m in range(n):  # a comment
        if m % 2:
            found.append(m)
    return found

@dataclasses.dataclass
class Config:
    """A configuration."""

    n: int = 3

    def fails(self):
        while self.n > 0:
            self.n -= 1
            if self.n == 1:
                raise ValueError("here")
'''


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_imported_modules_are_shown(seen: Seen, folder: Callable[[str, str], str]) -> None:
    module = imported(folder("vramcast_test_job", MODULE))
    assert module.loop(4) == [1, 3]
    assert (seen.loops, len(seen.turns)) == (1, 4)
    assert (module.__doc__, module.loop.__doc__) == ("Doc.", "Count.")


def test_sources_and_lines_stay(seen: Seen, folder: Callable[[str, str], str]) -> None:
    module = imported(folder("vramcast_test_job", MODULE))
    assert inspect.getsource(module.loop) == MODULE[MODULE.index("def loop") : MODULE.index("\n@data")].rstrip() + "\n"
    assert inspect.getsourcelines(module.Config)[1] == MODULE[: MODULE.index("@dataclasses.dataclass")].count("\n") + 1
    with pytest.raises(ValueError, match="here") as raised:
        module.Config().fails()
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.line, last.lineno) == ('raise ValueError("here")', MODULE[: MODULE.index("raise")].count("\n") + 1)


def lines_of(function: Any) -> set[int]:
    return {line for _, _, line in function.__code__.co_lines() if line}


def test_every_line_of_a_function_is_known(seen: Seen, folder: Callable[[str, str], str]) -> None:
    module = imported(folder("vramcast_test_job", MODULE))
    plain: dict[str, Any] = {"__name__": __name__}
    exec(compile(MODULE, "x", "exec"), plain)
    assert lines_of(module.loop) == lines_of(plain["loop"])


def test_libraries_and_our_own_files_are_not_shown(seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "site-packages"
    for name in ("vramcast_test_library.py", "composer/trainer/__init__.py", "composer/__init__.py"):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text("for n in range(2): pass\n")
    monkeypatch.syspath_prepend(str(library))
    try:
        imported("vramcast_test_library")
        assert seen.loops == 0
        imported("composer.trainer")
        assert seen.loops == 1
    finally:
        for name in ("vramcast_test_library", "composer", "composer.trainer"):
            sys.modules.pop(name, None)


def test_a_script_is_shown(seen: Seen, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("if __name__ == '__main__':\n    n = 0\n    while n < 3: n += 1\n")
    assert runpy.run_path(str(path), run_name="__main__")["n"] == 3
    assert seen.whiles == 1


def test_shown_functions_run_after_the_job(folder: Callable[[str, str], str]) -> None:
    """In threads, or at exit."""
    seen = Seen()
    compile_before = vars(runpy).get("compile")
    with shown(seen.loop, seen.passes, seen.turn):
        module = imported(folder("vramcast_test_job", MODULE))
    assert module.loop(4) == [1, 3]
    with pytest.raises(ValueError, match="here"):
        module.Config().fails()
    assert (seen.loops, seen.whiles, seen.turns) == (0, 0, [])
    assert vars(runpy).get("compile") is compile_before
    assert builtins.compile("1", "x", "eval")


def test_an_error_in_the_job_restores_the_imports(folder: Callable[[str, str], str]) -> None:
    seen = Seen()
    with pytest.raises(KeyError), shown(seen.loop, seen.passes, seen.turn):
        imported(folder("vramcast_test_job", "raise KeyError"))
    imported(folder("vramcast_test_later", "for n in range(2): pass"))
    assert seen.loops == 0
