"""The shares and the drawing of the pictures of docs/bounds.md."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.site.bound_figures import picture, reliability, reliability_chart

CASES = ((0.1, False), (0.2, True), (0.5, True), (0.75, True), (0.95, True), (0.95, False))


def test_shares_are_those_of_each_bin() -> None:
    low, middle, high = reliability(CASES, (0.5, 0.9))
    assert low == pytest.approx((0.15, 0.5, 2))
    assert middle == pytest.approx((0.625, 1.0, 2))
    assert high == pytest.approx((0.95, 0.5, 2))


def test_each_level_is_a_bin_of_its_own() -> None:
    assert reliability([(0.9, True), (0.5, True), (0.5, False)], (0.5, 0.9)) == [(0.5, 0.5, 2), (0.9, 1.0, 1)]


def test_picture_is_a_file_with_a_legend() -> None:
    chart = reliability_chart([(0.5, 0.6, 40)], [(0.3, 0.8, 5), (0.9, 1.0, 20)])
    drawn = picture(chart)
    root = ElementTree.fromstring(drawn)
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [one.name for one in chart.series] == texts[-len(chart.series) :]
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == 3
    assert drawn == picture(chart)
