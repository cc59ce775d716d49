"""Passes of small programs that sampled loops see, and the gains and counts that a jump adds."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from textwrap import dedent, indent
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from vramcast.tracer.hooks import torch_api
from vramcast.tracer.program.loop_sources import compiled
from vramcast.tracer.program.sampled_loops import SampledLoops

KIB = 1 << 10


class Card:
    """An allocator's sums. Blocks are tensors of the CPU, which the test lets pass as tensors of the card."""

    __module__ = "vramcast.tests"  # so that a jump does not advance these numbers

    def __init__(self) -> None:
        self.events = self.requested = self.live = self.most = 0

    def totals(self) -> tuple[int, int, int, int]:
        return self.events, self.requested, self.live, 0

    def record(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        self.allocate(storage.nbytes())
        weakref.finalize(storage, self.free, storage.nbytes())
        return tensor

    def allocate(self, size_bytes: int) -> None:
        self.events += 1
        self.requested += size_bytes
        self.live += size_bytes
        self.most = max(self.most, self.live)

    def free(self, size_bytes: int) -> None:
        self.events += 1
        self.live -= size_bytes


class Job:
    """A job's course, and the functions that its program calls."""

    __module__ = "vramcast.tests"

    def __init__(self, *, wanted: int, left_s: float | None) -> None:
        self.work = self.backwards = self.left_out = 0
        self.is_busy = False
        self.left_s = left_s
        self.card = Card()
        self.marks: deque[Any] = deque()  # no list: one of as many items as passes is taken for a comprehension's
        self.evaluated: list[Any] = []
        self.grew: list[bool] = []
        self.names: dict[str, Any] = {}
        self.error: BaseException | None = None
        self._wanted = wanted
        self.sampled = SampledLoops(self, self.card.totals)

    @property
    def seen(self) -> list[Any]:
        return [*self.marks]

    @property
    def all_steps(self) -> int:
        return self.backwards + self.left_out

    def may_jump(self, *, trains: bool) -> bool:
        return self.backwards >= self._wanted if trains else True

    def jumped(self, steps: int, *, grows: bool) -> None:
        self.left_out += steps
        self.grew.append(grows)

    def goes_on(self) -> None:
        raise KeyboardInterrupt

    def train(self, step: Any = None, size: int = 1) -> None:
        self.work += 2
        self.marks.append(step)
        self.card.allocate(size * KIB)
        self.card.free(size * KIB)
        self.backwards += 1

    def evaluate(self, step: Any = None) -> None:
        self.work += 1
        self.evaluated.append(step)
        self.card.allocate(7 * KIB)
        self.card.free(7 * KIB)

    def keep(self, size: int = 1) -> Any:
        return torch.empty(size * KIB, dtype=torch.uint8)


@pytest.fixture(autouse=True)
def on_the_card(monkeypatch: pytest.MonkeyPatch) -> Callable[[Job], None]:
    """Let tensors of the CPU pass as tensors of the card."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    empty = torch.empty

    def use(job: Job) -> None:
        monkeypatch.setattr(torch, "empty", lambda *args, **options: job.card.record(empty(*args, **options)))

    return use


def run(
    source: str, use: Callable[[Job], None] | None = None, *, wanted: int = 3, left_s: float | None = None, plain: bool = False,
    **names: Any,
) -> Job:  # fmt: skip
    """Run a program in a thread of its own, where pytest's functions are not among the running ones."""
    made: list[Job] = []

    def body() -> None:
        job = Job(wanted=wanted, left_s=left_s)
        made.append(job)
        if use is not None:
            use(job)
        module = ModuleType("vramcast_test_job")
        module.__file__ = "/job/train.py"
        sys.modules[module.__name__] = module
        job.names = vars(module)
        job.names.update({"train": job.train, "evaluate": job.evaluate, "keep": job.keep, "card": job.card, **names})
        code = compile(dedent(source), "/job/train.py", "exec", dont_inherit=True)
        try:
            if plain:
                exec(code, job.names)
                return
            with job.sampled.active():
                exec(compiled(dedent(source), "/job/train.py", "exec"), job.names)
        except Exception as error:
            job.error = error

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    sys.modules.pop("vramcast_test_job", None)
    if made[0].error is not None:
        raise made[0].error
    return made[0]


def check_sampled(job: Job, *, last: int, must: tuple[int, ...] = (), most: int = 80) -> None:
    """Check that the seen passes are few, rise, and have the first, the last and some others among them."""
    assert job.seen == sorted(set(job.seen)), "a pass came twice, or the loop went back"
    assert {0, 1, 2, last - 1, last} | {*must} <= {*job.seen}, job.seen
    assert len(job.seen) <= most, job.seen
    assert job.all_steps == last + 1
    assert job.sampled.doubts() == []


# ------------------------------------------------------------------------------------------------ the passes of a loop
LOOPS = {
    "range": "for step in range(20_000):\n    train(step)",
    "range from 5": "for step in range(5, 20_005): train(step - 5)",
    "list": "for step in [*range(20_000)]: train(step)",
    "tuple": "for step in tuple(range(20_000)): train(step)",
    "sorted": "for step in sorted(range(20_000), key=lambda n: n): train(step)",
    "sorted dict": "for step in sorted({n: 1 for n in range(20_000)}): train(step)",
    "dict": "for step in dict.fromkeys(range(20_000)): train(step)",
    "enumerate": "for step, x in enumerate(range(20_000)): train(step)",
    "enumerate from 1": "for step, x in enumerate([0] * 20_000, 1): train(step - 1)",
    "zip": "for step, x in zip(range(20_000), ['x'] * 20_000): train(step)",
    "count": "import itertools\nfor step in itertools.count():\n    train(step)\n    if step == 19_999: break",
    "while": "step = 0\nwhile step < 20_000:\n    train(step)\n    step += 1",
    "while at the end": "step = -1\nwhile step < 19_999:\n    step += 1\n    train(step)",
    "while true": dedent("""
        step = 0
        while True:
            train(step)
            step += 1
            if step >= 20_000: break
    """),
    "while down": "left = 20_000\nwhile left > 0:\n    train(20_000 - left)\n    left -= 1",
    "while with continue": """
        step = 0
        while step < 20_000:
            train(step)
            step += 1
            if step % 1_000_000: continue
    """,
    "in a function": "def main(n):\n    for step in range(n): train(step)\nmain(20_000)",
    "while in a function": """
        def main(n):
            step = 0
            while step < n:
                train(step)
                step += 1
            assert step == n
        main(20_000)
    """,
    "closure": """
        def main(n):
            step = 0
            def one():
                nonlocal step
                train(step)
                step += 1
            while step < n: one()
            assert step == n
        main(20_000)
    """,
    "attribute": """
        class Trainer:
            def __init__(self): self.step = 0
            def one(self):
                train(self.step)
                self.step += 1
            def fit(self, n):
                while self.step < n: self.one()
        trainer = Trainer()
        trainer.fit(20_000)
        assert trainer.step == 20_000
    """,
    "attribute of an attribute": """
        class State: step = 0
        class Trainer:
            def __init__(self): self.state = State()
            def fit(self, n):
                for _ in range(n):
                    train(self.state.step)
                    self.state.step += 1
        trainer = Trainer()
        trainer.fit(20_000)
        assert trainer.state.step == 20_000
    """,
    "slots": """
        import dataclasses
        @dataclasses.dataclass(slots=True)
        class State: step: int = 0
        state = State()
        for _ in range(20_000):
            train(state.step)
            state.step += 1
        assert state.step == 20_000
    """,
    "item": """
        state = {"step": 0, "more": [5]}
        for _ in range(20_000):
            train(state["step"])
            state["step"] += 1
            state["more"][0] += 2
        assert state == {"step": 20_000, "more": [40_005]}
    """,
    "global": """
        step = 0
        def one():
            global step
            train(step)
            step += 1
        for _ in range(20_000): one()
        assert step == 20_000
    """,
    "class attribute": """
        class State: step = 0
        def one():
            train(State.step)
            State.step += 1
        for _ in range(20_000): one()
        assert State.step == 20_000
    """,
    "generator": """
        def steps():
            step = 0
            while True:
                yield step
                step += 1
        for step in steps():
            train(step)
            if step == 19_999: break
    """,
    "generator of a range": """
        def steps(n):
            for step in range(n): yield step
        for step in steps(20_000): train(step)
    """,
    "generator in generators": """
        def steps(n):
            for step in range(n): yield step
        def pairs(n):
            for step in steps(n): yield step, -step
        for i, (step, other) in enumerate(pairs(20_000)):
            assert i == step == -other
            train(step)
    """,
    "yield from": """
        def steps(n):
            for step in range(n): yield step
        def again(n): yield from steps(n)
        for step in again(20_000): train(step)
    """,
    "generator expression": "for step in (n for n in range(20_000)): train(step)",
    "comprehension": "found = [train(step) for step in range(20_000)]\nassert len(found) == 20_000",
    "comprehension in a function": """
        def main(): return [train(step) for step in range(20_000)]
        assert len(main()) == 20_000
    """,
    "for with else": """
        ended = False
        for step in range(20_000): train(step)
        else: ended = True
        assert ended
    """,
    "tqdm": "import tqdm\nfor step in tqdm.tqdm(range(20_000), disable=True): train(step)",
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_sees_few_passes_with_the_first_and_the_last(name: str) -> None:
    job = run(LOOPS[name])
    check_sampled(job, last=19_999)


@pytest.mark.parametrize("name", ["range", "while", "closure", "generator", "attribute"])
def test_a_loop_that_may_not_jump_sees_all(name: str) -> None:
    job = run(LOOPS[name].replace("20_000", "200").replace("19_999", "199"), wanted=10**9)
    assert job.seen == [*range(200)]
    assert job.left_out == 0


def test_a_short_loop_is_seen_whole() -> None:
    job = run("for step in range(9): train(step)")
    assert job.all_steps == 9
    assert job.seen[-2:] == [7, 8]


def test_a_loop_without_training_is_plain() -> None:
    job = run(
        "found = [n for n in range(5_000) if n % 2]\nfor step in range(3): train(step)\nfor n in range(50): found.append(n)"
    )
    assert (len(job.names["found"]), job.names["n"]) == (2_550, 49)


def test_an_error_of_the_job_is_its_own() -> None:
    with pytest.raises(KeyError, match="mine"):
        run("for step in range(20_000):\n    train(step)\n    if step > 10_000: raise KeyError('mine')")


def test_a_thread_of_the_job_is_plain() -> None:
    job = run("""
        import threading
        found = []
        def other():
            n = 0
            while n < 3_000: n += 1
            for m in range(3_000): found.append(m)
            found.append(n)
        for step in range(20_000):
            train(step)
            if step == 2:
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()
    """)
    assert job.names["found"][-1] == 3_000
    assert {*range(3_000)} <= {*job.names["found"]}


# ------------------------------------------------------------------------------------------------ turns
@pytest.mark.parametrize(("condition", "must"), [
    ("step == 5000", (4999, 5000, 5001)), ("step >= 12_345", (12_344, 12_345)), ("step % 5000 == 4999", (4999, 9999)),
    ("(step + 1) % 6000 == 0", (5999, 11_999)), ("step in (777, 15_000)", (777, 15_000)), ("7_000 < step < 7_002", (7_001,)),
    ("step > 9_000 and step % 7 == 0", (9_002, 9_009)), ("not step % 9_000 and step", (9_000, 18_000)),
    ("step == total // 2", (10_000,)), ("step / total >= 0.75", (15_000,)), ("step == total - 1", (19_999,)),
    ("step + 1 == total", (19_999,)), ("step == warmup", (3_000,)), ("step == limits[1]", (8_000,)),
])  # fmt: skip
@pytest.mark.parametrize("loop", ["for step in range(total):", "step = -1\nwhile step < total - 1:\n    step += 1"])
def test_sees_where_a_condition_changes(condition: str, must: tuple[int, ...], loop: str) -> None:
    source = (
        f"total, warmup, limits = 20_000, 3_000, [1, 8_000]\n{loop}\n    train(step)\n    if {condition}: train(step + 0.5, 5)"
    )
    job = run(source)
    assert {*must, *(step + 0.5 for step in must if step + 0.5 in job.seen)} <= {*job.seen}
    assert {
        step + 0.5 for step in must if eval(condition, {"step": step, "total": 20_000, "warmup": 3_000, "limits": [1, 8_000]})
    } <= {*job.seen}
    assert {19_998, 19_999} <= {*job.seen}
    assert len(job.seen) < 250


def test_sees_each_size() -> None:
    job = run("for step in range(20_000): train(step, min(2 * (1 + step // 2_000), 9))")
    assert {2_000, 4_000, 6_000, 8_000} <= {*job.seen}
    assert len(job.seen) < 120


def test_sees_a_table_of_sizes() -> None:
    job = run("sizes = [8, 16, 4, 64]\nfor step in range(20_000): train(step, sizes[step // 5_000])")
    assert {5_000, 10_000, 15_000} <= {*job.seen}


def test_a_turn_in_a_function_of_the_job() -> None:
    job = run("""
        class Schedule:
            def __init__(self): self.calls = 0
            def size(self):
                self.calls += 1
                if self.calls > 7_000:
                    return 9
                return 1
        schedule = Schedule()
        for step in range(20_000): train(step, schedule.size())
        assert schedule.calls == 20_000
    """)
    assert 7_000 in job.seen


def test_a_turn_that_breaks_the_loop() -> None:
    job = run("for step in range(10**7):\n    if step >= 654_321: break\n    train(step)\ntrain('after')")
    assert job.seen[-2:] == [654_320, "after"]
    assert len(job.seen) < 120


def test_patience_ends_the_loop() -> None:
    """A count of passes without progress, as in early stopping."""
    job = run("""
        bad, best = 0, 3
        for step in range(100_000):
            train(step)
            if step > 50_000: bad += 1
            if bad > 1_000: break
    """)
    assert job.seen[-1] == 51_001
    assert len(job.seen) < 200


@pytest.mark.parametrize("test", ["since == 1_000", "since >= 1_000"])
def test_a_count_that_starts_again(test: str) -> None:
    job = run(f"""
        since = 0
        for step in range(100_000):
            train(step)
            since += 1
            if {test}:
                evaluate(step)
                since = 0
    """)
    assert job.evaluated[:2] == [999, 1_999]
    assert max(job.evaluated) > 50_000, (job.evaluated, job.sampled.doubts())


def test_a_count_that_begins_late_is_advanced() -> None:
    job = run("""
        late = 0
        for step in range(100_000):
            train(step)
            if step >= 50_000: late += 1
            if late == 30_000: train(step, 50)
    """)
    assert 79_999 in job.seen, job.sampled.doubts()


def test_rare_turns_of_two_conditions() -> None:
    job = run("""
        for step in range(100_000):
            train(step)
            if step % 1_000 == 999: evaluate(step)
            if step == 31_415: train(step + 0.5, 100)
    """)
    assert {31_415, 31_415.5, 99_999} <= {*job.seen}
    assert job.evaluated[:2] == [999, 1_999]
    assert len(job.seen) < 250


def test_a_number_that_does_not_advance_is_a_doubt() -> None:
    """The job reads it from where nothing can be set."""
    job = run("""
        import itertools
        numbers = itertools.count()
        for step in range(20_000):
            number = next(numbers)
            train(step)
            if number == 15_000: train(number)
    """)
    assert any("train.py:7" in one and "does not advance" in one for one in job.sampled.doubts()), (
        job.seen,
        job.sampled.doubts(),
    )


def test_a_drawn_size_is_a_doubt() -> None:
    job = run("import random\nfor step in range(20_000):\n    train(step, 128 if random.random() > 2 else 32)")
    assert any("drawn" in one for one in job.sampled.doubts())


# ------------------------------------------------------------------------------------------------ nested loops
def test_epochs_are_sampled() -> None:
    job = run("""
        total = 0
        for epoch in range(200):
            for step in range(1_000):
                train((epoch, step))
                total += 1
            evaluate(epoch)
        assert total == 200_000, total
    """)
    assert job.all_steps == 200_000
    assert {(0, 0), (0, 999), (1, 0), (199, 0), (199, 999)} <= {*job.seen}
    assert (job.evaluated[0], job.evaluated[-1]) == (0, 199)
    assert len(job.seen) < 400


def test_a_global_step_in_epochs() -> None:
    job = run("""
        step = 0
        for epoch in range(100):
            for batch in range(500):
                train(step)
                step += 1
                if step == 33_333: train(step, 50)
        assert step == 50_000, step
    """)
    assert job.all_steps in {50_000, 50_001}
    assert job.seen.count(33_333) >= 1
    assert 33_332 in job.seen
    assert len(job.seen) < 400


ENDS = {
    "while": "step = 0\nwhile step < 1_000:\n    train(step)\n    step += 1\n    total += 1",
    "break": "for step in itertools.count():\n    if step >= 1_000: break\n    train(step)\n    total += 1",
    "break at": dedent("""
        for step in itertools.count():
            if step == 1_000 or total > 90_000: break
            train(step)
            total += 1
    """),
    "while true": "step = 0\nwhile True:\n    train(step)\n    step += 1\n    total += 1\n    if step == 1_000: break\n"
    "    if total > 90_000: break",
    "generator": "for step in endless():\n    if step == 1_000 or total > 90_000: break\n    train(step)\n    total += 1",
    "return": "one()",
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_an_inner_loop_is_never_passed(name: str) -> None:
    """Also after its end was seen twice."""
    head = """
import itertools
total = 0
def endless():
    step = 0
    while True:
        yield step
        step += 1
def one():
    global total
    for step in range(5_000):
        train(step)
        total += 1
        if step == 999: return
for epoch in range(8):
"""
    job = run(head + indent(ENDS[name], "    "))
    assert (job.names["total"], job.all_steps, max(job.seen)) == (8_000, 8_000, 999)
    assert job.sampled.doubts() == []


def test_accumulation_in_a_pass() -> None:
    job = run("""
        for step in range(20_000):
            for micro in range(4): train((step, micro))
    """)
    assert job.all_steps == 80_000
    assert {(0, 0), (19_999, 3)} <= {*job.seen}
    assert len(job.seen) < 250


def test_a_last_epoch_with_more() -> None:
    job = run("""
        for epoch in range(50):
            for step in range(300): train((epoch, step), 9 if epoch == 49 else 1)
    """)
    assert {(48, 0), (49, 0), (49, 299)} <= {*job.seen}


def test_a_turn_in_a_middle_epoch() -> None:
    job = run("""
        for epoch in range(60):
            unfrozen = epoch >= 30
            for step in range(300): train((epoch, step), 9 if unfrozen else 1)
    """)
    assert {(29, 0), (30, 0), (30, 299), (59, 299)} <= {*job.seen}
    assert len(job.seen) < 500


# ------------------------------------------------------------------------------------------------ what passes keep
def live_of(source: str, use: Callable[[Job], None]) -> tuple[Job, Job]:
    """Run a program sampled and plain."""
    return run(source, use), run(source, use, plain=True)


KEPT = {
    "list": "kept = []\nfor step in range(3_000):\n    train(step)\n    kept.append(keep())\nassert len(kept) == 3_000",
    "list of tuples": """
        kept = []
        for step in range(3_000):
            train(step)
            kept.append((step, {"x": keep(2)}))
        assert len(kept) == 3_000
    """,
    "two of three": """
        a, b, c = [], [], []
        for step in range(3_000):
            train(step)
            a += [keep(), keep()]
            b.append(keep(3))
            c.append(step)
        assert (len(a), len(b), len(c)) == (6_000, 3_000, 3_000)
    """,
    "dict": "kept = {}\nfor step in range(3_000):\n    train(step)\n    kept[step] = keep()\nassert len(kept) == 3_000",
    "attribute": """
        class Trainer:
            def __init__(self): self.losses = []
        trainer = Trainer()
        for step in range(3_000):
            train(step)
            trainer.losses.append(keep())
        assert len(trainer.losses) == 3_000
    """,
    "function": """
        def main():
            kept = []
            for step in range(3_000):
                train(step)
                kept.append(keep())
            return kept
        kept = main()
        assert len(kept) == 3_000
    """,
    "comprehension": """
        def one(step):
            train(step)
            return keep()
        kept = [one(step) for step in range(3_000)]
        assert len(kept) == 3_000
    """,
    "counted": """
        kept = []
        for step in range(30_000):
            train(step)
            if step % 500 == 499: kept.append(keep(4))
        assert len(kept) == 60, len(kept)
    """,
    "comprehension and a list": """
        others = []
        def one(step):
            train(step)
            others.append(keep(3))
            return keep()
        kept = [one(step) for step in range(3_000)]
        assert (len(kept), len(others)) == (3_000, 3_000), (len(kept), len(others))
    """,
    "two names": """
        kept = []
        class Trainer: pass
        trainer = Trainer()
        trainer.kept = trainer.losses = again = kept
        for step in range(3_000):
            train(step)
            trainer.losses.append(keep())
        assert len(kept) == 3_000
    """,
    "far bound": """
        import collections
        kept = collections.deque(maxlen=2_000)
        for step in range(20_000):
            train(step)
            kept.append(keep())
        assert len(kept) == 2_000
    """,
    "by hand bounded": """
        kept = []
        for step in range(3_000):
            train(step)
            kept.append(keep())
            if len(kept) > 50: kept.pop(0)
        assert len(kept) == 50
    """,
    "rollouts": """
        kept = []
        for step in range(20_000):
            evaluate(step)
            kept.append(keep())
            if len(kept) == 128:
                train(step, 100)
                kept.clear()
    """,
    "epochs": """
        for epoch in range(30):
            kept = []
            for step in range(1_000):
                train((epoch, step))
                kept.append(keep())
            assert len(kept) == 1_000
    """,
    "bounded": """
        import collections
        kept = collections.deque(maxlen=50)
        for step in range(3_000):
            train(step)
            kept.append(keep())
        assert len(kept) == 50
    """,
    "once, at a frequent turn": """
        kept, groups = [keep(50)], []
        for step in range(10_000):
            train(step)
            if step % 50 == 0: pass
            if step == 2_500: groups.append(kept[0])
        assert len(groups) == 1
    """,
    "the same object": """
        kept, one = [], keep(100)
        for step in range(3_000):
            train(step)
            kept.append(one)
        assert len(kept) == 3_000
    """,
    "emptied": """
        kept = []
        for step in range(30_000):
            train(step)
            kept.append(keep())
            if len(kept) == 100: kept.clear()
    """,
    "nothing": "for step in range(3_000):\n    x = keep()\n    train(step)",
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_holds_what_all_passes_would_have_kept(name: str, on_the_card: Callable[[Job], None]) -> None:
    sampled, plain = live_of(KEPT[name], on_the_card)
    assert sampled.card.most == pytest.approx(plain.card.most, rel=0.01), sampled.seen
    assert sampled.card.live == plain.card.live
    assert len(sampled.seen) < 400


def test_a_growth_that_no_container_explains_is_seen_whole(on_the_card: Callable[[Job], None]) -> None:
    """A linked list, of which only the first object is known."""
    sampled, plain = live_of("""
        class Node: pass
        node = Node()
        for step in range(400):
            train(step)
            new = Node()
            new.before, new.tensor = node, keep()
            node = new
    """, on_the_card)  # fmt: skip
    assert sampled.seen == plain.seen
    assert sampled.card.most == plain.card.most


def test_a_job_is_told_what_grows(on_the_card: Callable[[Job], None]) -> None:
    assert set(run(KEPT["list"], on_the_card).grew) == {True}
    assert set(run(KEPT["nothing"], on_the_card).grew) == {False}


# ------------------------------------------------------------------------------------------------ lifetimes
def test_a_value_that_the_job_deletes_is_free() -> None:
    """As in a plain loop, which does not hold the values that it gives."""
    job = run("""
        import weakref
        class Dear: pass
        alive = set()
        def values():
            for n in range(5):
                yield Dear()
        for one in values():
            known = weakref.ref(one)
            del one
            alive.add(known() is not None)
            train()
    """)
    assert job.names["alive"] == {False}


def test_a_generator_is_closed_when_its_loop_is_left() -> None:
    job = run("""
        closed = []
        def steps():
            step = 0
            try:
                while True:
                    yield step
                    step += 1
            finally: closed.append(step)
        for epoch in range(3):
            for step in steps():
                train((epoch, step))
                if step == 3: break
            assert len(closed) == epoch + 1, closed
        def first():
            for step in steps():
                train()
                return step
        first()
        assert len(closed) == 4
    """)
    assert job.names["closed"] == [3, 3, 3, 0]


def test_variables_of_a_function_end_with_it() -> None:
    gc.disable()
    try:
        job = run("""
            import weakref
            class Dear: pass
            known = []
            def main():
                dear = Dear()
                known.append(weakref.ref(dear))
                kept = [dear]
                for step in range(5_000):
                    train(step)
                    if dear is None: pass
            main()
            free = known[0]() is None
        """)
    finally:
        gc.enable()
    assert job.names["free"]


def test_a_variable_deleted_in_a_function_is_free_during_its_loop() -> None:
    job = run("""
        import weakref
        class Dear: pass
        alive = []
        def main():
            dear = Dear()
            known = weakref.ref(dear)
            for step in range(5_000):
                train(step)
                if step == 4_998: del dear
                if step == 4_999: alive.append(known() is not None)
        main()
    """)
    assert job.names["alive"] == [False]


# ------------------------------------------------------------------------------------------------ data loaders
class Loader:
    """An iterator of a data loader: announces each batch, as the hooks of the tracer do."""

    __module__ = "vramcast.tests"

    def __init__(self, job: Job, n: int) -> None:
        self.job, self.left, self.loaded = job, n, 0
        setattr(self, torch_api.LOADER_SAMPLER, iter(range(n)))
        setattr(self, torch_api.LOADER_FETCHER, SimpleNamespace())

    def __len__(self) -> int:
        return self.left

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> int:
        self.job.sampled.draws(self, sys._getframe(1))
        try:
            value = next(getattr(self, torch_api.LOADER_SAMPLER))
        except StopIteration:
            self.job.sampled.ends(self)
            raise
        self.loaded += 1
        return int(value)


def with_loader(source: str, n: int = 20_000) -> Job:
    made: list[Job] = []
    return run(source, made.append, loader=lambda n=n: Loader(made[0], n))


@pytest.mark.parametrize("source", [
    "for step in loader(): train(step)", "for i, step in enumerate(loader()):\n    assert i == step\n    train(step)",
    "for i, step in zip(range(10**9), loader()):\n    assert i == step\n    train(step)",
    "for step, i in zip(loader(), range(10**9)):\n    assert i == step\n    train(step)",
    "import tqdm\nfor i, step in enumerate(tqdm.tqdm(loader(), disable=True)):\n    assert i == step\n    train(step)",
    "def batches():\n    for one in loader(): yield one\nfor step in batches(): train(step)",
    "total = 0\nfor step in loader():\n    assert total == step\n    train(step)\n    total += 1",
])  # fmt: skip
def test_a_loader_jumps_without_loading(source: str) -> None:
    check_sampled(with_loader(source), last=19_999)


def test_a_loader_in_epochs() -> None:
    job = with_loader("""
        total = 0
        for epoch in range(30):
            for i, batch in enumerate(loader(800)):
                assert i == batch
                train(total)
                total += 1
        assert total == 24_000
    """)
    assert job.all_steps == 24_000
    assert {0, 799, 800, 23_999} <= {*job.seen}
    assert len(job.seen) < 400


def test_batches_by_hand() -> None:
    job = with_loader("""
        batches = loader()
        for step in range(20_000):
            batch = next(batches)
            train(step)
    """)
    check_sampled(job, last=19_999)


def test_endless_batches() -> None:
    job = with_loader("""
        batches = loader(700)
        for step in range(20_000):
            try: batch = next(batches)
            except StopIteration:
                batches = loader(700)
                batch = next(batches)
            train(step)
    """)
    check_sampled(job, last=19_999, most=300)


def test_an_abandoned_loader_is_free() -> None:
    """`next(iter(loader))` in each step; its workers end with it."""
    job = with_loader("""
        import weakref
        known = []
        for step in range(8):
            one = loader()
            known.append(weakref.ref(one))
            batch = next(one)
            train(step)
        del one
        free = [one() is None for one in known]
    """)
    assert job.names["free"] == [True] * 8
    assert job.all_steps == 8


# ------------------------------------------------------------------------------------------------ limits
def test_little_time_makes_few_places() -> None:
    many, few = run(LOOPS["range"]), run(LOOPS["range"], left_s=0.0)
    assert len(few.seen) <= len(many.seen)
    assert {19_998, 19_999} <= {*many.seen}
    assert 19_999 in few.seen  # the last one alone


def test_a_model_that_runs_is_not_looked_into() -> None:
    made: list[Job] = []
    job = run("""
        found = set()
        for step in range(20_000):
            train(step)
            busy(True)
            n = 0
            while n < 5:
                n += 1
                train()
            found.add((sum(m for m in range(5)), n))
            busy(False)
    """, made.append, busy=lambda value: setattr(made[0], "is_busy", value))  # fmt: skip
    assert job.names["found"] == {(10, 5)}


def test_uneven_passes_are_seen_until_patience_ends() -> None:
    job = run("import random\nfor step in range(20_000): train(step, random.randint(1, 99))")
    assert {0, 1, 2, 19_998, 19_999} <= {*job.seen}
    assert len(job.seen) < 300


def test_says_where_it_is() -> None:
    made: list[Job] = []
    places: list[str] = []
    run(
        "for step in range(20_000):\n    train(step)\n    note()",
        made.append,
        note=lambda: places.append(made[0].sampled.place),
    )
    assert places[0] == "the last step"
    assert (
        places[-1].endswith(" 20,000 of the loop at /job/train.py:1")
        or "of 20,000 of the loop at /job/train.py:1" in places[-1]
    )
