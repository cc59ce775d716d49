"""The pictures of docs/bounds.md: how often bounds hold, and how wide they are.

    python -m benchmarks.site.bound_figures [--artifact DIR]

Writes docs/pictures/bound-reliability.svg and bound-width.svg from the shipped runs and the results that timm_edges keeps, and
prints their numbers. Censored runs are left out: whether a bound above their lower end holds is unknown. An artifact without
trees sets bounds by traits alone: its cross-validation needs no trees, and takes seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple, TypeAlias
from xml.etree import ElementTree

import numpy as np

from benchmarks.accuracy import timm_edges
from benchmarks.accuracy.bounds import as_served, judged
from benchmarks.accuracy.shipped import permissive
from benchmarks.site.screenshots import ROOT
from benchmarks.tables import table
from vramcast.core.files import atomic_write
from vramcast.estimates.bounds.learned import SHIPPED, load, named
from vramcast.estimates.bounds.support import Support
from vramcast.learner import sum_quantile
from vramcast.learner.examples import Example
from vramcast.learner.model import Head, LearnedModel
from vramcast.learner.residual_tree import in_words
from vramcast.learner.traits import Traits
from vramcast.views.charts import svg
from vramcast.views.charts.chart import COLOURS, DARK_GREY, GREY, INK, Axis, Chart, Series

LEVELS: Final = tuple(sum_quantile.LEVELS[:33:4].tolist())  # arbitrary: every fourth of a bound's own levels, 0.5 to 0.975
ENDS: Final = (0.25, 0.5, 0.75, 0.9, 0.975)  # arbitrary: between the bins of predicted probabilities
FEW: Final = 10  # arbitrary: a bin with fewer batches is a ring
WIDTH_LEVELS: Final = tuple(i / 200 for i in range(100, 199))  # arbitrary: 0.5 to 0.99
SHOWN: Final = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99)  # arbitrary: levels of the table and the axis, all in WIDTH_LEVELS
MOST: Final = 0.25  # arbitrary: the highest bound that the picture shows
_LINES: Final = (*COLOURS, DARK_GREY)
_WIDTH, _HEIGHT, _ROW = 614, 340, 18  # arbitrary: of a chart, as wide as docs/drawings, and of a row of the legend
_CAUSES: Final[Mapping[str, str]] = {
    "share much": "convolutions", "mode inference": "inference", "depthwise unqueried": "depthwise kernels",
    "cudnns alone": "one cuDNN", "batches vary": "varying batches", "compiled yes": "compiled",
    "values drawn": "data-dependent shapes", "ranks several": "several ranks",
}  # fmt: skip
_PANEL: Final = """<g><style>text { font: 12px system-ui; fill: #1a1a1a } .small { font-size: 10.5px }
.grid { stroke: #d9d9d9 } .tick { stroke: #5a5a5a } .line { fill: none; stroke-width: 1.5 }
</style><rect width="100%" height="100%" rx="8" fill="#fafafa" stroke="#ccc"/></g>"""
Share: TypeAlias = tuple[float, float, int]  # mean prediction of some cases, share of them that held, their number


class Curve(NamedTuple):
    """By level, the bound of a large job of a class above its estimate or a tree's; `support` is the highest one supported."""

    name: str
    bounds: Mapping[float, float]
    support: float


def of_runs(found: Sequence[Example], learned: LearnedModel) -> Iterator[tuple[float, bool]]:
    """Yield each level, and whether a measured run stays within its bound from an artifact that has not seen its model."""
    for run in judged(as_served(found, learned), LEVELS):
        if not run.is_lower_bound:
            yield from ((level, run.measured_bytes <= bound) for level, bound in run.bounds.items())


def of_edges(learned: LearnedModel) -> Iterator[tuple[float, bool]]:
    """Yield `Estimate.probability_fits` of each batch at an edge of the half of the models to judge by, and whether it ran."""
    for line in timm_edges.kept():
        edge = timm_edges.edge_in(line)
        if edge.half != timm_edges.HALVES[1] or "none" in (line["ran"]["verdict"], line["failed"]["verdict"]):
            continue
        for which in ("ran", "failed"):
            bound, context = timm_edges.bound_on_card(line, which, learned)
            yield bound.share_up_to(bound.upper(edge.device, context), edge.device, context), which == "ran"


def reliability(cases: Iterable[tuple[float, bool]], ends: Sequence[float]) -> list[Share]:
    """Return the shares of the cases (predicted, held) in bins; an end belongs to the bin above it."""
    pairs = np.array(list(cases), np.float64)
    bins = np.digitize(pairs[:, 0], ends)
    members = [pairs[bins == place] for place in np.unique(bins)]
    return [(*of.mean(axis=0).tolist(), len(of)) for of in members]


def curves(head: Head) -> Iterator[Curve]:
    """Yield the curves of the classes with most models, each that of the class's largest subgroup."""
    groups, largest = head.calibration.groups, dict[str, Traits]()
    for leaf in sorted(groups.leaves(), key=lambda one: one.n_models):
        traits = dict(cut.split(" ", 1) for cut in leaf.name.split(", ") if " not " not in cut)
        largest[groups.of_class(traits).name] = traits
    for group in sorted(groups.classes(), key=lambda one: -one.n_models)[: len(_LINES)]:
        support = Support(group.n_models).level
        levels = sorted({*WIDTH_LEVELS, support})
        residuals = head.upper(np.zeros(len(head.calibration.levels)), levels, largest[group.name], 0.0)
        words = ", ".join(_CAUSES.get(part, part) for part in in_words(group.name).split(", "))
        bounds = dict(zip(levels, np.expm1(residuals).tolist(), strict=True))
        yield Curve(f"{words} ({group.n_models} models)", bounds, support)


def reliability_chart(runs: Sequence[Share], edges: Sequence[Share]) -> Chart:
    """Return the shares that held against those that should."""
    axis = Axis("level, or predicted probability", 0, 1, tuple((i / 5, f"{i / 5:g}") for i in range(6)))
    many, few = ([one[:2] for one in edges if (one[2] < FEW) is rare] for rare in (False, True))
    series = (
        _series("observed = predicted", [(0, 0), (1, 1)], GREY, "line"),
        _series("runs at or below their bound", [one[:2] for one in runs], COLOURS[0], "points"),
        _series("batches of timm that ran", many, COLOURS[1], "points"),
        replace(_series(f"the same, of fewer than {FEW} batches", few, COLOURS[1], "points"), hollow=True),
    )
    return Chart("How often bounds hold", axis, replace(axis, name="observed share"), series, width=_WIDTH, height=_HEIGHT)


def width_chart(found: Sequence[Curve]) -> Chart:
    """Return the bounds by level, with a dot at the highest level that each class supports."""
    level = Axis("level", 2, 100, tuple((1 / (1 - q), f"{q:g}") for q in SHOWN), is_log=True)
    above = Axis("bound above the estimate", 0, MOST, tuple((i / 20, f"{5 * i} %") for i in range(6)))
    lines, dots = [], []
    for one, colour in zip(found, _LINES, strict=False):
        points = {q: (1 / (1 - q), y) for q, y in one.bounds.items() if y <= MOST and q <= SHOWN[-1]}
        lines.append(_series(one.name, list(points.values()), colour, "line"))
        dots += [points[one.support]] if one.support in points else []
    dotted = _series("highest level that the class supports", dots, INK, "points")
    return Chart("Bounds of large jobs by class", level, above, (*lines, dotted), width=_WIDTH, height=_HEIGHT)


def _series(name: str, points: Sequence[tuple[float, float]], colour: str, kind: Literal["line", "points"]) -> Series:
    return Series(name, kind, [x for x, _ in points], [y for _, y in points], colour)


def picture(chart: Chart) -> bytes:
    """Return a chart as an SVG file on a light panel, with its legend in two columns."""
    figure = ElementTree.fromstring(svg.draw(chart).replace(f"var(--{INK})", "#1a1a1a"))
    (drawing,), entries = figure.findall("svg"), figure.findall("ul/li")
    *_, width, top = map(int, drawing.attrib["viewBox"].split())
    rows = (len(entries) + 1) // 2
    drawing.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {top + rows * _ROW + 8}"}
    drawing.insert(0, ElementTree.fromstring(_PANEL))
    for place, entry in enumerate(entries):
        x, y, key = _ROW + place // rows * (width // 2), top + place % rows * _ROW, entry[0]
        key.attrib |= {"x": str(x), "y": str(y), "width": "20", "height": "12"}
        text = ElementTree.SubElement(drawing, "text", {"x": str(x + 26), "y": str(y + 10)})
        text.text, key.tail = key.tail, None
        drawing.append(key)
    return ElementTree.tostring(drawing) + b"\n"


def main() -> None:
    """Write the pictures and print their numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--artifact", metavar="DIR", help="default: the shipped one")
    learned = load(named(parser.parse_args().artifact or SHIPPED))
    shares = {"runs": reliability(of_runs(permissive(), learned), LEVELS), "edges": reliability(of_edges(learned), ENDS)}
    found = list(curves(learned.reserved_head))
    for name, chart in {"reliability": reliability_chart(*shares.values()), "width": width_chart(found)}.items():
        with atomic_write(ROOT / "docs" / "pictures" / f"bound-{name}.svg") as file:
            file.write(picture(chart))
    rows = [(of, f"{at:.3f}", f"{held:.3f}", n) for of, some in shares.items() for at, held, n in some]
    print(table(["of", "predicted", "observed", "n"], rows) + "\n")
    columns = ["class", *(f"{level:g}" for level in SHOWN), "supported level", "bound there"]
    percent = [[f"{100 * one.bounds[level]:.1f} %" for level in (*SHOWN, one.support)] for one in found]
    print(table(columns, [[one.name, *of[:-1], f"{one.support:.3f}", of[-1]] for one, of in zip(found, percent, strict=True)]))


if __name__ == "__main__":
    main()
