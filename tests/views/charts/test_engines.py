"""One chart in both engines: every kind is drawn at its coordinates, and untrusted text is escaped."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from vramcast.views.charts import page, png, svg
from vramcast.views.charts.chart import ALARM, BLUE, INK, Axis, Chart, Series, Shade

EVIL = "</svg><script>alert(1)</script>&\"'$x^{$"
X = Axis("time", 0, 10, ((0, "0"), (5, "5")))
Y = Axis("bytes", 0, 100, ((0, "0"), (50, "50")))
ALL = (
    Series("area", "area", (0, 5), (20, 40), BLUE),
    Series("band", "band", (0, 5), (60, 70), low=(50, 60)),
    Series("steps", "steps", (0, 5), (30, 60), INK),
    Series("line", "line", (0, 10), (0, 100)),
    Series("points", "points", (5,), (50,)),
    Series("rings", "points", (5,), (50,), hollow=True),
    Series("named", "boxes", (0,), (20,), low=(10,), end=(5,), titles=("a block",)),
    Series("boxes", "boxes", (0, 0), (20, 20), low=(10, 10), end=(5, 5)),
    Series("peak", "peak", (5,), (100,), INK),
    Series("level", "level", (), (50,), ALARM),
    Series("nothing", "boxes", (), ()),
)
CHART = Chart("all", X, Y, ALL, (Shade(0, 5, "early", 0.1),), ((5, "half"),), note="a note", width=100, height=100)


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(svg.draw(chart))


def test_series_are_drawn_at_their_coordinates() -> None:
    root = drawn(CHART)
    paths = {element.get("class"): element.get("d") for element in root.findall("svg/path")}
    left, middle, right = 78, 128, 178  # 100 units wide, 100 high from y = 40 on
    assert paths["area"] == f"M{left} 120H{middle}V100H{right}V140H{left}Z"
    assert paths["steps"] == f"M{left} 110H{middle}V80H{right}"
    assert paths["line"] == f"M{left} 140L{right} 40"
    assert paths["level"] == f"M{left} 90H{right}"
    assert paths["peak"] == f"M{middle} 40l-5 -9h10z"
    assert paths["shade"] == f"M{left} 40H{middle}V140H{left}Z"
    assert paths["boxes"] == f"M{left} 120h50v10h-50z"  # two at the same position are drawn once
    (polygon,) = root.findall("svg/polygon")
    assert polygon.get("points") == f"{left},80 {middle},70 {middle},80 {left},90"
    (box,) = root.findall("svg/rect")
    assert [box.get(key) for key in ("x", "y", "width", "height")] == [str(left), "120", "50", "10"]
    assert [(point.get("cx"), point.get("cy")) for point in root.findall("svg/circle")] == [(str(middle), "90")] * 2


def test_legend_lists_each_drawn_name_once() -> None:
    names = [one.name for one in ALL if one.name != "nothing"]
    twice = Chart("", X, Y, (*ALL, ALL[0]))
    assert ["".join(entry.itertext()) for entry in drawn(twice).findall("ul/li")] == names


@pytest.mark.parametrize("charts", [[CHART], [CHART, CHART], [Chart("", X, Y, ())]], ids=["one", "two", "empty"])
def test_draws_every_kind_as_png(charts: list[Chart]) -> None:
    assert png.draw(charts, EVIL).startswith(b"\x89PNG")


def test_escapes_untrusted_text() -> None:
    one = Series(EVIL, "boxes", (0,), (20,), low=(10,), end=(5,), titles=(EVIL,))
    axis = Axis(EVIL, 0, 10, ((0, EVIL),))
    evil = Chart(EVIL, axis, axis, (one,), (Shade(0, 5, EVIL, 0.1),), ((5, EVIL),), EVIL, EVIL)
    root = drawn(evil)
    assert not list(root.iter("script"))
    assert sum(text == EVIL for text in root.itertext()) == 10
    assert png.draw([evil], EVIL).startswith(b"\x89PNG")


def test_template_escapes_text_and_requires_values() -> None:
    text = page.render("base.html", title=EVIL, summary=[EVIL], charts=[EVIL, Markup("<b>ours</b>")])
    assert "<script" not in text
    assert "<b>ours</b>" in text
    with pytest.raises(UndefinedError, match="summary"):
        page.render("base.html", title="", charts=[])


def test_constant_curve_is_one_stroke() -> None:
    y = np.repeat([10, 20], 500)
    (path,) = drawn(Chart("", X, Y, (Series("", "steps", np.linspace(0, 10, 1000), y),))).findall("svg/path[@class='steps']")
    assert (path.get("d") or "").count("V") == sum(a != b for a, b in pairwise(y.tolist()))
