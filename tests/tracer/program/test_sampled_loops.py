"""Loops seen at sampled places of their whole range, in a job of few lines that trains nothing."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch

from vramcast.tracer.program.loop_sources import compiled
from vramcast.tracer.program.sampled_loops import SampledLoops


class Job:
    """A course whose steps request memory that the program names."""

    __module__ = "vramcast.tracer"  # the integers and lists of our own objects are not the job's

    def __init__(self) -> None:
        self.work = self.backwards = self.all_steps = 0
        self.is_busy = False
        self.left_s: float | None = None
        self.left_out = 0
        self.seen: list[Any] = []
        self._totals = [0, 0, 0, 0]
        self.loops = SampledLoops(self, lambda: (*self._totals,))  # type: ignore[arg-type, return-value]

    def may_jump(self, *, trains: bool) -> bool:
        return True

    def jumped(self, steps: int, *, grows: bool) -> None:
        self.left_out += steps
        self.all_steps += steps

    def goes_on(self) -> None:
        raise KeyboardInterrupt

    def train(self, size: int = 1, keeps: int = 0) -> None:
        self.work += 1
        self.backwards += 1
        self.all_steps += 1
        self._totals[0] += 10
        self._totals[1] += size
        self._totals[2] += keeps

    def run(self, source: str, **names: Any) -> dict[str, Any]:
        known: dict[str, Any] = {"__name__": "job", "see": self.seen.append, "train": self.train, **names}
        with self.loops.active():
            exec(compiled(textwrap.dedent(source), "job.py", "exec"), known)
        return known


@pytest.fixture
def job() -> Job:
    return Job()


LAST = {9_998, 9_999}
PROGRAMS = {
    "nothing changes": ("for step in range(10_000): see(step); train()", {0, 1, 2} | LAST),
    "comparison": ("for step in range(10_000):\n see(step); train(2 if step >= 5_000 else 1)", {4_999, 5_000, 5_001} | LAST),
    "equality in a function": (
        "def after(step):\n    if step == 7_000: train(9)\nfor step in range(10_000): see(step); train(); after(step)",
        {6_999, 7_000, 7_001} | LAST,
    ),
    "every kth pass": (
        "for step in range(10_000):\n see(step); train()\n if step % 3_000 == 2_999: train(5)", {2_998, 2_999, 3_000} | LAST,
    ),
    "division": (
        "for step in range(10_000):\n see(step); train(min(1 + step // 2_000, 4))", {1_999, 2_000, 4_000, 6_000} | LAST,
    ),
    "table": (
        "import bisect\nfor step in range(10_000):\n see(step); train([1, 2, 8][bisect.bisect([4_000, 8_000], step)])",
        {3_999, 4_000, 7_999, 8_000} | LAST,
    ),
    "set": (
        "late = {5_000, 7_000}\nfor step in range(10_000):\n see(step); train(2 if step in late else 1)", {5_000, 7_000} | LAST,
    ),
    "array": (
        "import numpy\nsizes = numpy.repeat([1, 4, 2], 3_000)\nfor step in range(9_000): see(step); train(sizes[step])",
        {2_999, 3_000, 6_000, 8_998, 8_999},
    ),
    "attribute": (
        "class C: n = 0\nc = C()\nfor step in range(10_000):\n see(step); c.n += 2\n train(7 if c.n > 9_000 else 1)",
        {4_499, 4_500, 4_501} | LAST,
    ),
    "closure": (
        "def main():\n n = 0\n def tick():\n  nonlocal n; n += 1\n  train(7 if n > 600 else 1)\n"
        " for step in range(10_000): see(step); tick()\nmain()",
        {599, 600, 601} | LAST,
    ),
    "while": ("step = 0\nwhile step < 10_000:\n see(step); train(7 if step > 600 else 1); step += 1", {600, 601} | LAST),
    "endless while": (
        "step = 0\nwhile True:\n see(step); train(); step += 1\n if step >= 10_000: break", {0, 1, 2} | LAST,
    ),
    "enumerate": ("for step, x in enumerate([5] * 10_000): see(step); train(7 if step == 600 else 1)", {599, 600} | LAST),
    "zip": ("for step, x in zip(range(10_000), [5] * 10_000): see(step); train(7 if step == 600 else 1)", {600} | LAST),
    "generator": (
        "def batches():\n for at in range(10_000): yield at\nfor step in batches(): see(step); train(7 if step == 600 else 1)",
        {600} | LAST,
    ),
    "numbered generator": (
        "def batches():\n for at in range(10_000): yield at\n"
        "for step, at in enumerate(batches()): assert step == at; see(step); train(7 if step == 600 else 1)",
        {600} | LAST,
    ),
    "endless generator": (
        "def batches():\n while True: yield 0\n"
        "for step, x in enumerate(batches()):\n if step >= 10_000: break\n see(step); train(7 if step == 600 else 1)",
        {600} | LAST,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_sees_where_something_changes_and_the_last_passes(job: Job, name: str) -> None:
    source, expected = PROGRAMS[name]
    job.run(source)
    assert expected <= set(job.seen)
    assert job.seen == sorted(set(job.seen))
    assert len(job.seen) < 130
    assert job.loops.doubts() == []
    assert job.all_steps >= 9_000


def test_follows_a_scheduler_that_counts_by_itself(job: Job) -> None:
    job.run("""
        class Growth:
            def __init__(self): self.images, self.level = 0, 1
            def tick(self, n):
                self.images += n
                if self.images >= 10_000 * self.level and self.level < 6:
                    self.level += 1
        growth = Growth()
        for step in range(100_000):
            see(growth.level); train(growth.level); growth.tick(16)
    """)
    assert set(job.seen) == {1, 2, 3, 4, 5, 6}
    assert len(job.seen) < 200


def test_nested_loops_meet_an_epoch_and_a_global_step(job: Job) -> None:
    job.run("""
        done = 0
        for epoch in range(100):
            if epoch == 50: see("unfrozen")
            for step in range(99):
                train(2 if epoch >= 50 else 1); done += 1
                if done == 7_123: see("late")
            see(epoch)
        see(done)
    """)
    assert {"unfrozen", "late", 0, 49, 50, 98, 99} <= set(job.seen)
    assert job.seen[-1] == 9_900
    assert len(job.seen) < 70


def test_a_loop_without_an_end_is_left(job: Job) -> None:
    with pytest.raises(KeyboardInterrupt):
        job.run("""
            step = 0
            while True:
                see(step); train(); step += 1
                if step % 500 == 0: train(2)
        """)
    assert {499, 999} < set(job.seen)
    assert 10**9 < job.seen[-1] < 10**11
    assert len(job.seen) < 80


def test_lists_and_counts_are_those_of_all_passes(job: Job) -> None:
    names = job.run("""
        import collections
        losses, last, copies = [], collections.deque(maxlen=10), []
        for step in range(10_000):
            train(); losses.append(0.5); last.append(step)
            if step % 500 == 499: copies.append("a copy")
    """)
    assert (len(names["losses"]), len(names["last"]), len(names["copies"])) == (10_000, 10, 20)
    assert job.all_steps == 10_000


def test_a_comprehension_has_the_length_of_its_loop(job: Job) -> None:
    names = job.run("found = [train() for at in range(3_000)]")
    assert len(names["found"]) == 3_000
    assert job.left_out > 2_900


def test_a_one_time_gain_is_not_repeated(job: Job) -> None:
    names = job.run("""
        groups = ["head"]
        for step in range(10_000):
            train()
            if step == 2_500: groups.append("backbone")
    """)
    assert names["groups"] == ["head", "backbone"]


def test_passes_that_keep_memory_elsewhere_are_all_made(job: Job) -> None:
    job.run("for step in range(300): see(step); train(keeps=64)")
    assert job.seen == [*range(300)]


def test_loops_without_training_are_left_alone(job: Job) -> None:
    job.run("for step in range(3_000): see(step)")
    assert job.seen == [*range(3_000)]


def test_number_that_does_not_advance_is_a_doubt(job: Job) -> None:
    job.run("""
        import itertools
        counter = iter([*range(10_000)])
        for step in range(10_000):
            n = next(counter)
            train(9 if n > 5_000 else 1)
    """)
    assert "n > 5000 at job.py:6" in job.loops.doubts()[0]


@pytest.mark.parametrize(("chance", "n_doubts"), [("-1", 1), ("0.5", 0)])
def test_drawn_size_that_had_one_value_is_a_doubt(job: Job, chance: str, n_doubts: int) -> None:
    job.run(f"""
        import random
        random.seed(1)
        for step in range(10_000): train(2 if random.random() < {chance} else 16)
    """)
    assert len(job.loops.doubts()) == n_doubts


def test_other_threads_run_all_their_passes(job: Job) -> None:
    names = job.run("""
        import threading
        found = []
        def work():
            at = 0
            while at < 500: found.append(at); at += 1
        thread = threading.Thread(target=work); thread.start()
        for step in range(1_000): train()
        thread.join()
    """)
    assert len(names["found"]) == 500


def test_places_and_steps_of_running_loops(job: Job) -> None:
    job.run("""
        for epoch in range(10):
            for step in range(50):
                train()
                if step == 5 and epoch == 0: look()
    """, look=lambda: job.seen.extend([job.loops.place, job.loops.steps_known()]))  # fmt: skip
    assert job.seen == ["pass 6 of 50 of the loop at job.py:3", 500]


def test_fault_of_ours_ends_sampling_and_not_the_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramcast.tracer.program.sampled_loops.CarriedState", lambda passes: 1 / 0)
    job.run("for step in range(200): see(step); train()")
    assert job.seen == [*range(200)]
    assert "could not be sampled (ZeroDivisionError" in job.loops.doubts()[0]


def test_is_inactive_in_a_running_model(job: Job) -> None:
    job.is_busy = True
    job.run("for step in range(200): see(step); train()")
    assert len(job.seen) == 200


@pytest.mark.parametrize("values", ["layers", "enumerate(layers)", "zip(layers, range(100))"])
def test_loop_over_layers_sees_each(job: Job, values: str) -> None:
    job.run(f"for layer in {values}: see(1); train()", layers=[torch.nn.Identity() for _ in range(100)])
    assert len(job.seen) == 100
