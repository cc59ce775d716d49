"""The table of speed in docs/evidence.md: written, read again, and checked for growth; and the ratios of the limit."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks.speed import command_line, limit
from benchmarks.speed.command_line import PAGE, Row, Spent, grown, ratios, written
from benchmarks.speed.ways import STAGES, WAYS
from vramcast.core.units import GIB

TORCH = Spent(2.0)
PAGE_TEXT = """# Evidence

| job | CPU time / `import torch` | CPU s | `import torch`, CPU s | host memory |
|---|---:|---:|---:|---:|
| cold | 1.30 | 2.60 | 2.00 | 0.24 GiB |

- the rest
"""


def row(name: str, *cpu_s: float) -> Row:
    return Row(name, tuple((Spent(one, GIB // 4), TORCH) for one in cpu_s))


def test_ratio_is_the_median_of_the_turns() -> None:
    assert row("cold", 3.0, 2.0, 9.0).ratio == 1.5


def test_table_is_written_in_place_of_the_old_one_and_read_again() -> None:
    page = written(PAGE_TEXT, [row("cold", 3.0), row("warm", 0.4)])
    assert ratios(page) == {"cold": 1.5, "warm": 0.2}
    assert "| warm | 0.20 | 0.40 | 2.00 | 0.25 GiB |\n\n- the rest\n" in page
    assert page.startswith("# Evidence\n\n| job |")


@pytest.mark.parametrize(("cpu_s", "has_grown"), [(2.9, False), (3.1, True)])
def test_check_fails_if_a_ratio_has_grown_by_15_percent(cpu_s: float, has_grown: bool) -> None:
    assert bool(grown([row("cold", cpu_s)], ratios(PAGE_TEXT))) is has_grown


def test_check_fails_for_a_row_that_the_page_lacks() -> None:
    assert grown([row("new", 0.1)], ratios(PAGE_TEXT)) == ["new: 0.05 times `import torch`; the page says 0.00"]


def test_page_has_a_ratio_for_each_job() -> None:
    assert all(ratio > 0 for ratio in ratios(PAGE.read_text(encoding="utf-8")).values())


def test_home_page_repeats_the_cold_command_line() -> None:
    found = re.search(r"\*\*([\d.]+) times `import torch`\*\*", (PAGE.parent / "index.md").read_text(encoding="utf-8"))
    assert found is not None
    assert float(found[1]) == pytest.approx(ratios(PAGE.read_text(encoding="utf-8"))["the same, cold command line"], rel=0.15)


@pytest.mark.integration
def test_measures_a_command_with_its_children() -> None:
    spent = command_line.command((sys.executable, "-c", "sum(range(10**6))"))
    assert 0 < spent.cpu_s < 60
    assert spent.host_bytes == 0


def ways(follower_s: float, size_bytes: int = GIB) -> limit.Found:
    seconds = dict(zip(WAYS, (follower_s, 1.2, 1.0), strict=True))
    return {
        way: {**dict.fromkeys(STAGES, total / len(STAGES)), "bytes": size_bytes if way == "follower" else GIB}
        for way, total in seconds.items()
    }


def test_limit_reports_ratios_and_whether_the_aims_are_met() -> None:
    text, is_met = limit.report({"a": ways(1.4), "b": {"missing": "needs x"}})
    assert is_met
    assert "| a | 1.00 | 1.20 | 1.40 | 1.40 | 1.40 |" in text
    assert "left out: b: needs x" in text
    assert not limit.report({"a": ways(2.6)})[1]
    assert not limit.report({"a": ways(1.4, 2 * GIB)})[1]
