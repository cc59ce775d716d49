"""The content of a chart as plain numbers, and the colours of all charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

# spec: Okabe and Ito, 2008, https://jfly.uni-koeln.de/color/: colour-blind readers can distinguish them.
BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
GREEN: Final = "#009E73"
PURPLE: Final = "#CC79A7"
ORANGE: Final = "#E69F00"
SKY_BLUE: Final = "#56B4E9"
YELLOW: Final = "#F0E442"
TEAL: Final = "#44AA99"
COLOURS: Final = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY_BLUE)  # for lines and points; yellow is invisible on white paper
DARK_GREY: Final = "#606060"  # arbitrary, like the next two: three distinguishable greys on dark and light paper
GREY: Final = "#999999"
LIGHT_GREY: Final = "#C8C8C8"
# A page defines these colours for light and dark paper; a picture has white paper.
INK: Final = "ink"
ALARM: Final = "alarm"
ON_WHITE: Final[Mapping[str, str]] = {INK: "#000000", ALARM: "#C00000"}  # arbitrary

_MAX_TICKS: Final = 6  # arbitrary

Numbers: TypeAlias = Sequence[float] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One series of a chart.

    Attributes:
        name: Name in the legend.
        kind: "points"; "line"; "steps", where each y holds up to the next x, and the last one to the end of the axis; "area",
            steps filled down to the axis; "band" between `low` and `y`; "boxes" from `x` to `end` and from `low` to `y`;
            "peak", a mark at one point; "level", a dashed line at one y.
        x, y: Coordinates.
        colour: #rrggbb, INK or ALARM.
        low: Lower ends of bands and boxes.
        end: Right ends of boxes.
        titles: Tooltips of boxes in a page. Boxes without titles are drawn as one shape.
        hollow: Whether points are drawn as rings.
    """

    name: str
    kind: Literal["points", "line", "steps", "area", "band", "boxes", "peak", "level"]
    x: Numbers
    y: Numbers
    colour: str = GREY
    low: Numbers = ()
    end: Numbers = ()
    titles: Sequence[str] = ()
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its name, its ends, its ticks as (value, label), and whether it is logarithmic."""

    name: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def place(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the positions of values on the axis: 0 at the low end, 1 at the high end, never beyond."""
        low, high, at = (np.log(v) if self.is_log else v for v in (self.low, self.high, np.maximum(values, self.low)))
        return np.minimum((at - low) / (high - low), 1.0)


@dataclass(frozen=True, slots=True)
class Shade:
    """A shaded stretch of the x axis: its name, if there is room for it, and its darkness, 0 to 1."""

    first: float
    end: float
    name: str
    weight: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot without a drawing.

    Attributes:
        title: Title of the chart.
        x, y: Axes.
        series: Series in painting order, the last on top. Series with the same name share an entry in the legend.
        shades: Shaded stretches of the x axis.
        marks: Vertical lines as (x, label), with the label above.
        note: Text in the upper right corner.
        description: Text for screen readers, in addition to the names.
        width, height: Size of the page's drawing, in its units.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    shades: tuple[Shade, ...] = ()
    marks: tuple[tuple[float, str], ...] = ()
    note: str = ""
    description: str = ""
    width: int = 460  # arbitrary
    height: int = 300  # arbitrary


def ink_on(colour: str) -> str:
    """Return black or white, whichever is more legible on a colour.

    Args:
        colour: #rrggbb.
    Source: WCAG 2.2, relative luminance and contrast ratio.
    """
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def ticks(top: int, unit: int = 1) -> list[int]:
    """Return at most six round numbers from 0 up to `top`: multiples of 1, 2 or 5 times a power of ten of `unit`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            step = factor * power * unit
            if top // step < _MAX_TICKS:
                return list(range(0, top + 1, step))
        power *= 10
