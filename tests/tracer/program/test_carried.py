"""Integers and containers that a job carries from pass to pass: found, advanced and filled."""

from __future__ import annotations

import collections
import functools
import gc
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.tracer.program.carried import CarriedState


@pytest.fixture
def on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of the CPU pass as tensors of the card."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)


class Sampler:
    """Looks at a program at each `look()`, and jumps at `jump(n)`."""

    __module__ = "vramcast.tests"  # so that its own numbers and lists are not the job's

    def __init__(self) -> None:
        self.carried: CarriedState | None = None
        self.error: BaseException | None = None
        self.gained: dict[int, int] = {}

    def look(self) -> None:
        if self.carried is None:
            self.carried = CarriedState()
        else:
            self.carried.look()

    def jump(self, passes: int, *, is_new: bool = False) -> None:
        assert self.carried is not None
        self.carried.advance(passes)
        self.carried.fill(self.carried.steady, passes, is_new=is_new)
        self.carried.rebase()

    def held(self) -> int:
        assert self.carried is not None
        return self.carried.held_bytes(self.carried.steady)


def run(source: str, **names: Any) -> dict[str, Any]:
    """Run a program as a module of a job, in a thread, where pytest's functions are not among the running ones."""
    sampler, module = Sampler(), ModuleType("vramcast_test_job")
    module.__file__ = "/job/train.py"
    found = vars(module)
    found.update({"look": sampler.look, "jump": sampler.jump, "held": sampler.held, **names})

    def body() -> None:
        try:
            exec(compile(textwrap.dedent(source), "/job/train.py", "exec", dont_inherit=True), found)
        except Exception as error:
            sampler.error = error

    sys.modules[module.__name__] = module
    try:
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
    finally:
        del sys.modules[module.__name__]
    if sampler.error is not None:
        raise sampler.error
    return found


# A program with a number `NOW` that each pass changes by `PASS`.
PLACES = {
    "variable of a module": ("n = 0", "n += 3", "n"),
    "variable of a function": ("n = 0", "n += 3", "n"),
    "item": ("s = {'n': 0}", "s['n'] += 3", "s['n']"),
    "item of a list": ("s = [9, 0]", "s[1] += 3", "s[1]"),
    "item in items": ("s = [{'a': [0]}]", "s[0]['a'][0] += 3", "s[0]['a'][0]"),
    "number as a key": ("s = {5: 0}", "s[5] += 3", "s[5]"),
    "default dict": ("s = collections.defaultdict(int)\ns['n']", "s['n'] += 3", "s['n']"),
    "counter": ("s = collections.Counter(n=0)", "s['n'] += 3", "s['n']"),
    "attribute": ("class A: pass\na = A()\na.n = 0", "a.n += 3", "a.n"),
    "attribute of an attribute": ("class A: pass\na = A()\na.b = A()\na.b.n = 0", "a.b.n += 3", "a.b.n"),
    "slot": ("class A: __slots__ = ('n',)\na = A()\na.n = 0", "a.n += 3", "a.n"),
    "one slot": ("class A: __slots__ = 'n'\na = A()\na.n = 0", "a.n += 3", "a.n"),
    "data class": ("@dataclasses.dataclass\nclass A: n: int = 0\na = A()", "a.n += 3", "a.n"),
    "name space": ("a = types.SimpleNamespace(n=0)", "a.n += 3", "a.n"),
    "private attribute": ("class A:\n    def __init__(self): self.__n = 0\na = A()", "a._A__n += 3", "a._A__n"),
    "in a tuple": ("class A: n = 0\na = (1, A())", "a[1].n += 3", "a[1].n"),
    "in a deque": ("a = collections.deque([0, 1])", "a[0] += 3", "a[0]"),
    "in an object of a list": ("class A: n = 0\na = [A() for _ in range(3)]", "a[2].n += 3", "a[2].n"),
    "bound method": ("class A:\n    n = 0\n    def f(self): self.n += 3\nf = A().f", "f()", "f.__self__.n"),
    "partial": ("class A: n = 0\nf = functools.partial(print, A())", "f.args[0].n += 3", "f.args[0].n"),
    "large": ("n = 10**15", "n += 10**14", "n"),
    "falling": ("n = 0", "n -= 2", "n"),
}  # fmt: skip
IN_FUNCTION = {name: place for name, place in PLACES.items() if name != "variable of a module"}
HEAD = "import collections, dataclasses, functools, types\n"


def plain(setup: str, one: str, now: str, passes: int) -> int:
    names: dict[str, Any] = {}
    exec(HEAD + setup, names)
    for _ in range(passes):
        exec(one, names)
    value = eval(now, names)
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize("name", PLACES)
def test_advances_a_number_of_a_module(name: str) -> None:
    setup, one, now = PLACES[name]
    loop = f"for _ in range(3):\n    {one}\n    look()\njump(100)\n{one}\nfound = {now}"
    assert run(f"{HEAD}{setup}\n{loop}")["found"] == plain(setup, one, now, 104)


@pytest.mark.parametrize("name", IN_FUNCTION)
def test_advances_a_number_of_a_running_function(name: str) -> None:
    setup, one, now = IN_FUNCTION[name]
    loop = f"for _ in range(3):\n    {one}\n    look()\njump(100)\n{one}\nreturn {now}"
    body = textwrap.indent(f"{setup}\n{loop}", "    ")
    assert run(f"{HEAD}def main():\n{body}\nfound = main()")["found"] == plain(setup, one, now, 104)


CLOSURES = {
    "inner function": """
        def main():
            n = 0
            def one():
                nonlocal n
                n += 1
            for _ in range(3): one(); look()
            jump(100); one()
            return n
        found = main()
    """,
    "of a function that has ended": """
        def make():
            n = 0
            def one():
                nonlocal n
                n += 1
                return n
            return one
        one = make()
        for _ in range(3): one(); look()
        jump(100)
        found = one()
    """,
    "generator": """
        def numbers():
            n = 0
            while True:
                n += 1
                yield n
        numbers = numbers()
        for _ in range(3): next(numbers); look()
        jump(100)
        found = next(numbers)
    """,
    "generator of a function": """
        def numbers():
            n = 0
            while True:
                n += 1
                yield n
        def main():
            made = numbers()
            for _ in range(3): next(made); look()
            jump(100)
            return next(made)
        found = main()
    """,
    "callers": """
        def main():
            n = 0
            for _ in range(3):
                n += 1
                inner()
            leap()
            return n + 1
        def inner(): look()
        def leap(): jump(100)
        found = main()
    """,
    "class": """
        class A: n = 0
        for _ in range(3): A.n += 1; look()
        jump(100)
        found = A.n + 1
    """,
}


@pytest.mark.parametrize("name", CLOSURES)
def test_advances_a_number_of_a_closure(name: str) -> None:
    assert run(CLOSURES[name])["found"] == 104


def test_numbers_that_do_not_grow_by_a_constant_stay() -> None:
    found = run("""
        n = m = k = 1; x = 0.5; flag = True; still = 7; word = "a"
        for n_pass in (1, 2, 3):
            n *= 3; m = 5 - m; x += 1; flag = not flag; word += "b"
            k += n_pass
            look()
        jump(100)
    """)
    assert [found[name] for name in ("n", "m", "x", "flag", "still", "word", "k")] == [27, 4, 3.5, False, 7, "abbb", 7]


def test_other_variables_of_a_function_stay() -> None:
    """CPython writes all of them back, also those that the function has deleted."""
    found = run("""
        def main(a, *b, c=3):
            n, gone, cell = 0, 1, [5]
            def inner(): return cell
            del gone
            for _ in range(3): n += 1; look()
            kept = cell
            jump(100)
            try: gone
            except UnboundLocalError: gone = "unbound"
            return n, gone, a, b, c, inner() is kept
        found = main(1, 2)
    """)["found"]
    assert found == (103, "unbound", 1, (2,), 3, True)


def test_an_ended_function_is_no_error() -> None:
    found = run("""
        def inner():
            n = 0
            for _ in range(3): n += 1; look()
            return n
        m = inner()
        m += 1; look(); m += 1; look()
        jump(100)
    """)
    assert found["m"] in (5, 105)


def test_a_replaced_object_is_found_by_its_way() -> None:
    found = run("""
        class A: n = 0
        a = A()
        for _ in range(3):
            b = A(); b.n = a.n + 2
            a = b
            look()
        jump(100)
    """)
    assert found["a"].n == 206


def test_an_object_that_is_gone_is_no_error() -> None:
    found = run("""
        class A: n = 0
        a, items, n = A(), {"x": [0]}, 0
        for _ in range(3): a.n += 1; items["x"][0] += 1; n += 1; look()
        del a, items["x"]
        jump(100)
        look()
    """)
    assert (found["n"], found["items"]) == (103, {})


def test_a_property_or_a_frozen_object_is_no_error() -> None:
    run("""
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class A: n: int = 0
        a = A()
        for _ in range(3):
            object.__setattr__(a, "n", a.n + 1)
            look()
        jump(100)
    """)


@pytest.mark.parametrize("module", ["random", "torch", "numpy", "logging", "threading"])
def test_numbers_of_libraries_stay(module: str) -> None:
    found = run(f"""
        class A:
            __module__ = {module!r}
            def __init__(self): self.n = 0
        a = A()
        for _ in range(3): a.n += 1; look()
        jump(100)
    """)
    assert found["a"].n == 3


def test_numbers_of_a_loaders_iterator_stay() -> None:
    """It counts the batches that its workers owe it."""
    loader = torch.utils.data.DataLoader([torch.zeros(1)] * 50)
    names = run("""
        batches = iter(loader)
        next(batches); look()
        next(batches); look()
        next(batches); look()
        jump(1_000)
    """, loader=loader)  # fmt: skip
    assert names["batches"]._num_yielded == 3
    assert next(names["batches"]) == torch.zeros(1)


def test_numbers_of_trainers_are_advanced() -> None:
    found = run("""
        class State:
            __module__ = "transformers.trainer_callback"
            def __init__(self): self.global_step = 0
        state = State()
        for _ in range(3): state.global_step += 1; look()
        jump(100)
    """)
    assert found["state"].global_step == 103


def test_a_number_of_an_optimizer_and_its_schedule() -> None:
    found = run("""
        import torch
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        for _ in range(3): optimizer.step(); schedule.step(); look()
        jump(100)
        found = schedule.last_epoch
    """)
    assert found["found"] == 103


def test_a_batch_norm_counts_on_the_card() -> None:
    """Its count is a tensor, which no jump touches."""
    found = run("""
        import torch
        norm = torch.nn.BatchNorm1d(2)
        for _ in range(3): norm(torch.zeros(3, 2)); look()
        jump(100)
        found = int(norm.num_batches_tracked)
    """)
    assert found["found"] == 3


def test_a_second_jump_goes_on_from_the_first() -> None:
    found = run("""
        n, kept = 0, []
        for _ in range(3): n += 2; kept.append(n); look()
        jump(10)
        for _ in range(2): n += 2; kept.append(n); look()
        jump(10)
    """)
    assert (found["n"], len(found["kept"])) == (50, 25)


@given(step=st.integers(-5, 5), passes=st.integers(0, 10**9), before=st.integers(3, 6))
@settings(max_examples=30)
def test_a_jump_equals_its_passes(step: int, passes: int, before: int) -> None:
    found = run(f"n = 7\nfor _ in range({before}): n += {step}; look()\njump({passes})")
    assert found["n"] == 7 + step * (before + passes)


# ------------------------------------------------------------------------------------------------ containers
FILLED = {
    "list": ("kept = []", "kept.append(n)", 103),
    "several": ("kept = []", "kept += [n, 'x']", 206),
    "deque": ("kept = collections.deque()", "kept.append(n)", 103),
    "bounded": ("kept = collections.deque(maxlen=60)", "kept.append(n)", 60),
    "dict by numbers": ("kept = {}", "kept[n] = 'x'", 103),
    "dict by every tenth number": ("kept = {}", "kept[10 * n] = 'x'", 103),
    "attribute": ("class A: kept = None\na = A()\na.kept = kept = []", "a.kept.append(n)", 103),
    "in a dict": ("log = {'loss': []}\nkept = log['loss']", "log['loss'].append(n)", 103),
    "two names": ("kept = []\nagain = kept\nmore = {'x': kept}", "again.append(n)", 103),
    "full": ("kept = collections.deque([1] * 9, maxlen=9)", "kept.append(n)", 9),
    "unmoved": ("kept = [1, 2]", "pass", 2),
    "replaced": ("kept = []", "kept = [*kept, n]", 3),
    "emptied": ("kept = []", "kept = kept if n % 2 else []; kept.append(n)", None),
    "uneven": ("kept = []", "kept += [0] * n", 6),
    "shrinking": ("kept = [0] * 9", "kept.pop()", 6),
    "by words": ("kept = {}", "kept[str(n)] = 'x'", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", FILLED)
@pytest.mark.parametrize("where", ["module", "function"])
def test_fills_what_gains_the_same_in_each_pass(name: str, where: str) -> None:
    setup, one, length = FILLED[name]
    body = f"{setup}\nfor n in (1, 2, 3):\n    {one}\n    look()\njump(100)\nfound = len(kept)"
    if where == "function":
        body = "def main():\n" + textwrap.indent(body, "    ") + "\n    return found\nfound = main()"
    found = run(HEAD + body)["found"]
    assert found == length or (length is None and found <= 103)


def test_keys_go_on() -> None:
    found = run("kept = {}\nfor n in (1, 2, 3):\n    kept[2 * n] = n\n    look()\njump(3)")
    assert [*found["kept"]] == [2, 4, 6, 8, 10, 12]


def test_items_are_the_same_objects() -> None:
    found = run("one, kept = object(), []\nfor n in (1, 2, 3):\n    kept.append(one)\n    look()\njump(10)")
    assert {*map(id, found["kept"])} == {id(found["one"])}


@pytest.mark.parametrize("passes", [1, 10, 999, 1_001, 30_000])
def test_copies_hold_the_bytes_of_all_passes(passes: int, on_the_card: None) -> None:
    found = run(f"""
        import torch
        kept, held_bytes = [], 0
        for n in (1, 2, 3):
            kept.append({{"x": torch.ones(130, dtype=torch.float32), "n": n}})
            look()
        held_bytes = held()
        jump({passes}, is_new=True)
    """)
    kept = found["kept"]
    assert (len(kept), found["held_bytes"]) == (3 + passes, 520)
    storages = {one["x"].untyped_storage().data_ptr(): one["x"].untyped_storage().nbytes() for one in kept[3:]}
    assert sum(storages.values()) == 1024 * passes  # the allocator rounds to 512 bytes
    assert {(*one["x"].shape, one["x"].dtype) for one in kept} == {(130, torch.float32)}


def test_the_same_tensor_has_its_bytes_once(on_the_card: None) -> None:
    found = run("""
        import torch
        one, kept = torch.ones(128), []
        for n in (1, 2, 3):
            kept.append((one, one[3:], one.detach()))
            look()
        found = held()
    """)
    assert found["found"] == 512


def test_a_view_keeps_its_whole_storage(on_the_card: None) -> None:
    found = run("""
        import torch
        kept = []
        for n in (1, 2, 3):
            kept.append(torch.ones(64, 64)[:, ::2].T)
            look()
        held_bytes = held()
        jump(2, is_new=True)
    """)
    last = found["kept"][-1]
    assert found["held_bytes"] == 64 * 64 * 4
    assert (last.shape, last.stride(), last.untyped_storage().nbytes()) == ((32, 64), (2, 64), 64 * 64 * 4)


def test_a_kept_model_is_copied(on_the_card: None) -> None:
    found = run("""
        import copy, torch
        model, kept = torch.nn.Linear(16, 16), []
        for n in (1, 2, 3):
            kept.append(copy.deepcopy(model))
            look()
        held_bytes = held()
        jump(4, is_new=True)
    """)
    assert found["held_bytes"] == (16 * 16 + 16) * 4
    assert len({id(one.weight) for one in found["kept"]}) == 7


def test_a_bounded_container_gets_no_more_than_it_holds(on_the_card: None) -> None:
    found = run("""
        import collections, torch
        kept = collections.deque(maxlen=2_000)
        for n in (1, 2, 3):
            kept.append(torch.ones(128))
            look()
        jump(20_000, is_new=True)
    """)
    kept = found["kept"]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    assert (len(kept), sum(storages.values())) == (2_000, 2_000 * 512)


# ------------------------------------------------------------------------------------------------ lifetimes
class _Dear:
    pass


def test_keeps_nothing_alive() -> None:
    gc.disable()
    try:
        found = run("""
            class A: pass
            def main():
                dear, one = Dear(), A()
                one.dear, one.n, kept = dear, 0, [dear]
                known = ref(dear)
                for _ in range(3): one.n += 1; kept.append(None); look()
                jump(10)
                del dear, one, kept
                free = known() is None
                return free
            found = main()
        """, Dear=_Dear, ref=weakref.ref)  # fmt: skip
    finally:
        gc.enable()
    assert found["found"]


def test_a_function_that_returns_frees_its_variables() -> None:
    gc.disable()
    try:
        found = run("""
            def inner():
                dear = Dear()
                known.append(ref(dear))
                look()
            known = []
            for _ in range(3): inner()
            found = [one() is None for one in known]
            jump(10)
        """, Dear=_Dear, ref=weakref.ref)  # fmt: skip
    finally:
        gc.enable()
    assert found["found"] == [True] * 3


def test_the_jobs_own_locals_stay() -> None:
    found = run("""
        def main(lr, epochs):
            config = locals()
            for _ in range(3): look()
            return dict(config)
        found = main(1, 2)
    """)["found"]
    assert (found["lr"], found["epochs"]) == (1, 2)


def test_runs_no_code_of_the_job() -> None:
    calls: list[str] = []

    class Odd:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            raise AttributeError(name)

        @functools.cached_property
        def dear(self) -> int:
            calls.append("dear")
            return 1

        @property
        def n(self) -> int:
            calls.append("n")
            return 1

        def __len__(self) -> int:
            calls.append("len")
            return 1

        def __iter__(self) -> Iterator[int]:
            calls.append("iter")
            return iter([1])

        def __eq__(self, other: object) -> bool:
            calls.append("eq")
            return True

        __hash__ = None  # type: ignore[assignment]

    run("n = 0\nfor _ in range(3): n += 1; look()\njump(10)", odd=Odd(), more=[Odd()])
    assert calls == []


def test_huge_containers_are_not_walked() -> None:
    made: Callable[[], Any] = lambda: [collections.deque([object()]) for _ in range(50_000)]  # noqa: E731
    found = run("n = 0\nfor _ in range(3): n += 1; look()\njump(10)", data=made())
    assert found["n"] == 13


def test_a_cycle_of_objects_ends() -> None:
    found = run("""
        class A: pass
        a = A(); a.b = A(); a.b.a = a; a.me = a; a.items = [a]; a.items.append(a.items); a.n = 0
        for _ in range(3): a.n += 1; look()
        jump(100)
    """)
    assert found["a"].n == 103
