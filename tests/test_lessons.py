"""Measured runs become examples; those with a cap are the second round of those without."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("xgboost")

from vramcast import lessons
from vramcast.datasets.run import Measurement, Passport, Run, Workload
from vramcast.learner.examples import Example

GIB = 1 << 30
CARD = Passport("vramcast measure", gpu="NVIDIA H200", torch="2.11.0")


def run(id_: str, name: str, status: str = "ok", cap_bytes: int | None = None, gpu: str = "NVIDIA H200") -> Run:
    workload = Workload(name, target=f"torchvision:{name}", batch=("1x3x8x8",), cap_bytes=cap_bytes)
    measured = Measurement("ok" if status == "ok" else "oom", reserved_bytes=4 * GIB, censored=status != "ok")
    return Run(id_, workload, dataclasses.replace(CARD, gpu=gpu), measured)


RUNS = [
    run("free", "vgg11"),
    run("cap0", "vgg11", cap_bytes=2 * GIB),
    run("cap1", "vgg11", "oom", cap_bytes=GIB),
    run("cap2", "vgg11", "oom", cap_bytes=GIB + 512),
    run("cap3", "vgg11", cap_bytes=3 * GIB),
    run("elsewhere", "vgg11", cap_bytes=GIB // 2, gpu="NVIDIA L4"),
    run("other", "vgg13"),
]


def test_the_smallest_cap_which_ran_and_the_largest_which_died_are_found() -> None:
    found = lessons.second_rounds(RUNS)
    assert found[lessons.job_key(RUNS[0])] == (2 * GIB, GIB + 512)
    assert found[lessons.job_key(RUNS[5])] == (GIB // 2, None)
    assert lessons.job_key(RUNS[6]) not in found


def test_an_example_says_what_capped_runs_showed_instead_of_what_is_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def example_of(run: Run, *, trust: bool) -> Example | str:
        if run.workload.cap_bytes is not None:
            return "the allocator was capped"
        return Example(run.id, run.id, "", "h200", "one", {}, 1, 9, ran_at=5, died_at=4, is_emulated=True)

    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    monkeypatch.setattr(lessons, "example_of", example_of)
    for _ in range(2):  # the second time from what was kept
        found = lessons.lessons_of(RUNS)
        assert [example.id for example in found.examples] == ["free", "other"]
        assert [(example.ran_at, example.died_at, example.is_emulated) for example in found.examples] == [
            (2 * GIB, GIB + 512, False),
            (5, 4, True),
        ]
        assert found.left_out == {"the allocator was capped": 5}
