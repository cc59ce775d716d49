"""Charts, drawings and the page, from runs with a known drawing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.core.errors import OutputError
from vramcast.core.units import GIB
from vramcast.learner.evaluation import charts
from vramcast.learner.evaluation.charts import CHARTS, binomial_band
from vramcast.learner.evaluation.report import report, write_report
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.views.charts import svg
from vramcast.views.charts.chart import COLOURS, Axis, Chart, Series

from .samples import drawn_runs, run, scored_runs

VOID = {"meta", "br"}


class Page(HTMLParser):
    """The content of a page; every tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "action", "data", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def series(chart: Chart) -> dict[str, Series]:
    return {one.name: one for one in chart.series}


def test_parity_chart_has_points_and_rings() -> None:
    runs = [run(1 * GIB, 2 * GIB), run(3 * GIB, 3 * GIB, family="mlp"), run(5 * GIB, 9 * GIB, censored=True)]
    found = series(charts.parity(runs))
    assert (found["cnn"].x, found["cnn"].y) == ((GIB,), (2 * GIB,))
    assert found["mlp"].x == (3 * GIB,)
    (censored,) = [one for one in found.values() if one.hollow]
    assert (censored.x, censored.y) == ((5 * GIB,), (9 * GIB,))


def test_coverage_chart_has_shares_levels_and_band() -> None:
    runs = [run(100, 100, bounds={0.5: 100 - (i % 4 == 0), 0.9: 110}) for i in range(8)]
    found = series(charts.coverage(runs))
    assert found["measured"].y == (0.75, 1.0)
    assert found["coverage equal to the level"].y == (0.5, 0.9)
    band = found["95 % of samples with exact levels"]
    assert (band.low, band.y) == ((0.125, 0.625), (0.875, 1.0))  # of 8: 1 to 7 at a half, 5 to 8 at 0.9


@pytest.mark.parametrize(("n", "share"), [(1, 0.5), (8, 0.5), (57, 0.9), (500, 0.99), (20_000, 0.95)])
def test_band_is_binomial(n: int, share: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    low, high = binomial_band(n, share)
    assert (round(low * n), round(high * n)) == tuple(stats.binom.ppf([0.025, 0.975], n, share))


@settings(deadline=None)
@given(st.integers(1, 200), st.floats(0.01, 0.99))
def test_band_surrounds_its_share(n: int, share: float) -> None:
    low, high = binomial_band(n, share)
    assert 0 <= low <= high <= 1
    assert low - 1 / n < share < high + 1 / n


def test_error_distribution_rises_to_all_runs() -> None:
    runs = [run(100, 101), run(100, 90), run(100, 100), run(100, 150, said_out_of_memory=True)]
    found = series(charts.error_distribution(runs))["all (3)"]
    assert found.x == (1e-4, pytest.approx(0.01), pytest.approx(0.1))  # an error of 0 is at the left end of the logarithm
    assert found.y == (pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0)


def test_overprovision_is_median_excess() -> None:
    runs = [run(100, 100, bounds={0.9: bound}) for bound in (100, 110, 160)]
    found = series(charts.overprovision(runs))
    assert found["median"].y == (pytest.approx(0.1),)
    assert found["middle 80 % of runs"].low == (pytest.approx(0.02),)
    assert found["middle 80 % of runs"].y == (pytest.approx(0.5),)


def test_combines_families_beyond_the_colors() -> None:
    runs = [run(100, 100, family=f"family {i:02}") for i in range(20)]
    names = list(series(charts.parity(runs)))
    assert names[1:] == [*(f"family {i:02}" for i in range(len(COLOURS) - 1)), "other"]
    assert len(series(charts.parity(runs))["other"].x) == 20 - len(COLOURS) + 1


def test_axis_clips_to_its_ends() -> None:
    log = Axis("", 1.0, 100.0, (), is_log=True)
    assert [log.place(value) for value in (0.0, 1.0, 10.0, 100.0, 1e9)] == pytest.approx([0, 0, 0.5, 1, 1])
    assert Axis("", -1.0, 3.0, ()).place(0.0) == 0.25


@settings(max_examples=60, deadline=None)
@given(scored_runs(), st.sampled_from(sorted(CHARTS)))
def test_charts_stay_inside_their_frame(runs: list[Scored], name: str) -> None:
    text = svg.draw(CHARTS[name](runs))
    root = ElementTree.fromstring(text)
    chart = root.find("svg")
    assert chart is not None
    _, _, width, height = map(float, chart.attrib["viewBox"].split())
    assert "nan" not in text
    for circle in chart.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height
    for polygon in chart.iter("polygon"):
        corners = [tuple(map(float, corner.split(","))) for corner in polygon.attrib["points"].split()]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in corners)
    for label in (text for text in chart.iter("text") if text.attrib.get("text-anchor") == "middle" and "x" in text.attrib):
        half = 3.5 * len(label.text or "")  # a character of 12 px is about 7 wide
        assert half <= float(label.attrib["x"]) <= width - half


def test_page_is_well_formed_and_loads_nothing(tmp_path: Path) -> None:
    write_report(drawn_runs(80), tmp_path / "report.html", title="Ours & theirs")
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert page.links == []
    assert not re.search(r"https?:|@import|url\(", text)
    assert page.tags.count("figure") == 4
    assert "script" not in page.tags
    assert "Ours & theirs" in page.text
    assert "prefers-color-scheme: dark" in text


def test_page_shows_metrics_and_kinds_of_failures() -> None:
    runs = [
        run(100, 90, id="low", bounds={0.9: 95, 0.99: 120}, survives=True, card_bytes=GIB),
        run(100, 103, id="high", group="vgg", bounds={0.9: 105, 0.99: 120}),
        run(100, 80, id="dead", ran_out_of_memory=True, card_bytes=GIB),
    ]
    text = Page(report(runs)).text
    assert "3 runs of 2 models" in text
    assert "median error 6.50 %" in text
    assert "(PEF) 33.33 %" in text
    assert "first round for 1 runs, by a second run for 1, by comparing bytes for 1; 0 undecided" in text
    assert "0 of 1 out-of-memory failures were predicted" in text
    assert "The largest of 2 under-estimates" in text
    assert "at least 0.0 MiB" in text


def test_escapes_names() -> None:
    evil = "<script>alert(1)</script>&\"'\udcff\x00"
    runs = [run(100, 90, id=evil, group=evil, family=evil, gpu=evil, optimizer=evil, bounds={0.9: 120})] * 3
    page = Page(report(runs, title=evil))
    assert "script" not in page.tags
    assert "<script>alert(1)" in page.text
    report(runs).encode()


def test_empty_list_gives_a_page(tmp_path: Path) -> None:
    write_report([], tmp_path / "report.html")
    text = Page((tmp_path / "report.html").read_text()).text
    assert "0 runs of 0 models" in text
    assert "Nothing to show." in text


@settings(max_examples=15, deadline=None)
@given(scored_runs())
def test_any_list_gives_a_page(runs: list[Scored]) -> None:
    text = report(runs)
    Page(text)
    assert not re.search(r"\bnan\b|\binf\b", text)


def test_unwritable_page_error_names_path(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"missing.*cannot be written"):
        write_report([], tmp_path / "missing" / "report.html")
