"""What a chart shows, as plain numbers, and the colours of all charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

# spec: Okabe and Ito, "Color Universal Design", 2008: colour-blind readers tell them apart.
BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
GREEN: Final = "#009E73"
PURPLE: Final = "#CC79A7"
ORANGE: Final = "#E69F00"
SKY_BLUE: Final = "#56B4E9"
YELLOW: Final = "#F0E442"
COLOURS: Final = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY_BLUE)  # of lines and points; yellow vanishes on white paper
DARK_GREY: Final = "#606060"  # arbitrary, as the next two: three which are told apart, on dark and on light paper
GREY: Final = "#999999"
LIGHT_GREY: Final = "#C8C8C8"
# A page has its own colours of these names, for light and for dark paper; a picture has white paper.
INK: Final = "ink"
ALARM: Final = "alarm"
ON_WHITE: Final[Mapping[str, str]] = {INK: "#000000", ALARM: "#C00000"}  # arbitrary

_MAX_TICKS: Final = 6  # arbitrary

Numbers: TypeAlias = Sequence[float] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One thing on a chart.

    Attributes:
        kind: "points"; "line"; "steps", each y holding up to the next x, the last one to the end of the axis; "area", steps
            filled down to the axis; "band" between `low` and `y`; "boxes" from `x` to `end` and from `low` to `y`; "peak", a
            mark at one point; "level", a dashed line at one y.
        colour: #rrggbb, INK or ALARM.
        low: Of bands and boxes.
        end: Of boxes.
        titles: Of boxes: what a page says of each under the pointer. Boxes without are drawn as one.
        hollow: Points are drawn as rings.
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
    """Its name, its ends, the (value, label) of its ticks, and whether it is logarithmic."""

    name: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def place(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return where on the axis `values` stand: 0 at its low end, 1 at its high one, and never beyond."""
        low, high, at = (np.log(v) if self.is_log else v for v in (self.low, self.high, np.maximum(values, self.low)))
        return np.minimum((at - low) / (high - low), 1.0)


@dataclass(frozen=True, slots=True)
class Shade:
    """A stretch of the x axis behind all else: its name, where there is room for it, and how dark it is, 0 to 1."""

    first: float
    end: float
    name: str
    weight: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot without a drawing.

    Attributes:
        series: In the order in which they are painted, the last on top. Those of one name have one entry in the legend.
        shades: Of the x axis.
        marks: (x, label) of vertical lines, the label above.
        note: In the upper right corner.
        description: For readers who do not see it, besides the names.
        width: Of the page's drawing, in its units; as `height`.
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
    """Return black or white, whichever is read better upon a colour.

    Args:
        colour: #rrggbb.
    Source: WCAG 2.2, relative luminance and contrast ratio.
    """
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def ticks(top: int, unit: int = 1) -> list[int]:
    """Return round numbers from 0 up to `top`, six at most: multiples of 1, 2 or 5 times a power of ten of `unit`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            step = factor * power * unit
            if top // step < _MAX_TICKS:
                return list(range(0, top + 1, step))
        power *= 10
