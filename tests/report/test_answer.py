"""The answer: seven lines of at most a hundred characters, wrapped at words, with what decides in the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.estimates.test_verdict import DOUBTFUL, growth, sized
from vramcast.core.errors import UsageError
from vramcast.estimates.bounds.support import Support
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device as find_device
from vramcast.jobs.job import Command
from vramcast.jobs.sizes import Sizes
from vramcast.report import details, draw_page, text
from vramcast.report.answer import headline, lines
from vramcast.report.card_bar import card_bar
from vramcast.tracer.format.trace import CLASSES, PROCESSES
from vramcast.tracer.protocol.alloc_conf import AllocConf
from vramcast.views import style

MIB = 2**20
Make = Callable[..., Estimate]
WARNINGS = tuple(f"warning number {number} of a long list of warnings " * 5 for number in range(9))
JOBS: list[dict[str, Any]] = [
    {},
    *(changes for changes, _ in DOUBTFUL),
    {"growth": growth(steps_known=501)},
    {"warnings": WARNINGS, "unknown": tuple(f"cudnnCall{number}" for number in range(200))},
    {"unbounded_calls": tuple(f"aten::call{number}" for number in range(200))},
    {"out_of_memory": "CUDA out of memory. " * 30},
    {"has_card": False},
]


@pytest.mark.parametrize("changes", JOBS)
@pytest.mark.parametrize("total_bytes", [MIB, 600 * MIB, 40 << 30])
def test_seven_lines_of_a_hundred_characters(changes: dict[str, Any], total_bytes: int) -> None:
    found = sized(total_bytes, **changes)
    said = text(found).splitlines()
    assert len(said) == (7 if found.has_card else 6)
    assert max(map(len, said)) <= 100


def test_long_and_hostile_names_stay_in_their_line(make: Make, hostile: Estimate) -> None:
    for found in (hostile, make(names=("layers." * 90, "x" * 400, "aten::" + "y" * 400))):
        said = text(found)
        assert len(said.splitlines()) <= 7
        assert max(map(len, said.splitlines())) <= 100
        assert "\x1b" not in said


@given(width=st.integers(20, 120), at=st.integers(0, len(JOBS) - 1))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_narrow_lines_wrap_at_words(width: int, at: int) -> None:
    found = sized(600 * MIB, **JOBS[at])
    said = text(found, width)
    assert all(len(line) <= width or len(line.split()) == 1 for line in said.splitlines())
    assert said.split() == text(found, 100).split() or width - 2 < 40  # only the bar differs


@pytest.mark.parametrize(("changes", "reason"), DOUBTFUL)
def test_reason_of_doubt_is_in_first_line(changes: dict[str, Any], reason: str) -> None:
    first = headline(sized(40 << 30, **changes))
    assert first.startswith(f"uncertain: {reason[:30]}") or reason[:20] in first or first.endswith("...")


@pytest.mark.parametrize("changes", [one for one in JOBS if "warnings" not in one])
def test_long_first_line_keeps_its_beginning(changes: dict[str, Any]) -> None:
    assert headline(sized(600 * MIB, **changes)).startswith(
        ("uncertain", "does not fit: ", "fits: ", "room on ", "no known card")
    )


def test_counts_what_only_details_show(make: Make) -> None:
    plain, noted = make(), make(warnings=("one", "two", "context 1 MiB is assumed"))
    assert "--details" not in text(plain)
    assert text(noted).splitlines()[-1].endswith("(2 more: --details)")
    assert "(2 more below)" in draw_page(noted)


def test_long_inputs_leave_room_for_the_module(make: Make) -> None:
    sizes = Sizes(8, 77, 1024, defaults=("batch_size", "seq", "image_size"), text="8 images of 1024 x 1024 with 77 tokens each")
    found = make(names=("x", "transformer_blocks.11.attn.dropout", "aten::y"))
    found = replace(found, job=replace(found.job, sizes=sizes))
    assert "11.attn.dropout; with 8 images of 1024 x 1024 with 77 tokens each\n" in text(found)
    assert "(default batch, length and size)" in details(found, 200)


def test_bar_has_peak_reach_and_rest(make: Make) -> None:
    bar = text(make(2048), signs="#+.").splitlines()[1]
    assert bar.startswith("[###")
    assert "+" in bar
    assert bar.endswith(".]")
    assert len(bar) == 42
    assert len(text(make(2048), 30, signs="#+.").splitlines()[2]) <= 30


def test_without_card_names_smallest_with_room(make: Make) -> None:
    found = make(has_card=False)
    named = find_device(headline(found).split()[2])
    assert headline(found).startswith("room on ")
    assert named.total_bytes >= found.upper_bound
    assert "--on CARD" in headline(found)
    assert "fits:" not in text(found)
    assert found.to_dict()["verdict"] is None
    assert found.to_dict()["fits"]["h200"] is True
    assert 'card-bar"' not in draw_page(found)


@pytest.mark.parametrize(
    ("models", "level", "default", "words"),
    [
        (39, None, 0.95, "19 of 20 jobs like it (39 measured models)"),
        (38, None, 0.9, "9 of 10 jobs like it (38 measured models)"),
        (19, 0.95, 0.9, "19 of 20 jobs like it (19 measured models)"),
        (14, None, 0.9, "9 of 10 jobs like it (14 measured models)"),
        (14, 0.99, 0.9, "9 of 10 jobs like it (14 measured models, too few for 99 of 100)"),
        (200, 0.98, 0.95, "98 of 100 jobs like it (200 measured models)"),
        (58, 0.9375, 0.95, "93 of 100 jobs like it (58 measured models)"),
        (6, None, 0.9, "8 of 10 jobs like it (6 measured models, too few for 9 of 10)"),
        (1, 0.995, 0.9, "5 of 10 jobs like it (1 measured model, too few for 995 of 1000)"),
        (0, None, 0.9, "0 of 10 jobs like it (no measured models, too few for 9 of 10)"),
    ],
)
def test_level_is_what_models_support(models: int, level: float | None, default: float, words: str) -> None:
    support = Support(models)
    assert support.default_level == pytest.approx(default)
    assert support.words(support.default_level if level is None else level) == words


def test_estimate_has_supported_level_unless_given(make: Make) -> None:
    found = make(estimator=Estimator())
    assert found.level == found.bound.support.default_level
    assert replace(found, estimator=Estimator(level=0.97)).level == 0.97
    said = found.to_dict()["upper_bound"]
    assert (said["supported_level"], said["models"]) == (found.bound.support.level, found.bound.support.models)


@pytest.mark.parametrize("memory_mib", [None, 600])
def test_same_composition_everywhere(make: Make, memory_mib: int | None) -> None:
    found = make(memory_mib)
    held = {name.replace("_", " "): size for name, size in found.to_dict()["breakdown"].items() if size}
    assert {look.name: size for look, size in style.parts(found.trace)} == held
    assert {one.look.name: one.size_bytes for one in card_bar(found.to_dict()).held} == held
    assert sum(held.values()) == found.process
    holds = dict(lines(found))["holds"]
    assert holds == "activations 300.0 MiB, parameters 100.0 MiB, workspaces 50.0 MiB"


def test_no_verdict_without_a_card(make: Make) -> None:
    found = make(has_card=False)
    for ask in (found.fits, found.verdict_on, lambda: found.verdict):
        with pytest.raises(UsageError, match="no card was named"):
            ask()
    assert found.fits("h200") in (True, False)
    assert "no card was named" in repr(found)


@pytest.mark.parametrize("count", [1, 25])
def test_contexts_are_counted(make: Make, count: int) -> None:
    found = make()
    others = [["worker.py", 0, True]] * (count - 1) + [["done.py", 0, False]]
    found = replace(
        found, trace=replace(found.trace, header={**found.trace.header, PROCESSES: [["train.py", 1, True], *others]})
    )
    peak = next(line.words for line in lines(found) if line.name == "peak")
    assert (f" + {count} CUDA contexts " if count > 1 else " + CUDA context ") in peak


@pytest.mark.parametrize(
    ("target", "conf", "said"),
    [
        ("model.py:net", "", "600.0 MiB short: --alloc-conf expandable_segments:True (973.2 MiB), or "),
        ("model.py:net", "expandable_segments:True", "600.0 MiB short: --advise, a smaller batch, or "),
        (None, "expandable_segments:True", "600.0 MiB short: --advise, a smaller batch, or "),
    ],
)
def test_a_job_that_does_not_fit_gets_a_way_out(make: Make, target: str | None, conf: str, said: str) -> None:
    found = replace(make(1024), process=1624 * MIB, alloc_conf=AllocConf(conf, "job"))
    job = found.job if target else replace(found.job, target=None, batch=None, command=Command(("train.py",)))
    line = lines(replace(found, job=job))[-1]
    assert line.name == "try"
    assert line.words.startswith(said)
    assert found.fits(line.words.rpartition("or --on ")[2])


def test_child_of_a_sequential_has_its_class(make: Make) -> None:
    found = make(names=("x", "0.2", "aten::y"))
    assert "module 0.2;" in f"{text(found)};".replace("\n", ";")
    found.trace.header[CLASSES] = {"0.2": "Linear"}
    assert "module 0.2 (Linear)" in text(found)
