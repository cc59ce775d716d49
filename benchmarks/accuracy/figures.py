"""Error figures of the accuracy benchmarks. Errors are relative: estimate / measured - 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one group: count, median / 90th percentile / maximum of |error|, median error, share of under-estimates."""

    n: int
    median: float
    p90: float
    maximum: float
    signed_median: float
    under: float

    def cells(self) -> list[str]:
        """Return the figures as table cells."""
        if not self.n:
            return ["0", *["-"] * 5]
        return [
            str(self.n),
            *(f"{100 * value:.2f} %" for value in (self.median, self.p90, self.maximum)),
            f"{100 * self.signed_median:+.2f} %",
            f"{100 * self.under:.0f} %",
        ]


SUMMARY_COLUMNS = ("n", "median", "p90", "max", "signed median", "under")


def summarize(pairs: Iterable[tuple[float, float]]) -> Summary:
    """Return the figures of (estimate, measured) pairs."""
    errors = np.array([estimate / measured - 1 for estimate, measured in pairs])
    if not len(errors):
        return Summary(0, *[float("nan")] * 5)
    size = np.abs(errors)
    return Summary(
        len(errors),
        float(np.median(size)),
        float(np.quantile(size, 0.9)),
        float(size.max()),
        float(np.median(errors)),
        float((errors < 0).mean()),
    )


QUANTILES = (0.5, 0.9, 0.95, 0.99, 1.0)


def residual_quantiles(pairs: Iterable[tuple[float, float]]) -> tuple[int, list[float]]:
    """Return n and the empirical quantiles of measured / estimate - 1 of (estimate, measured) pairs.

    Each quantile is one of the values: the first that at least this share of the runs does not exceed.
    """
    residuals = np.array([measured / estimate - 1 for estimate, measured in pairs])
    if not len(residuals):
        return 0, [float("nan")] * len(QUANTILES)
    return len(residuals), [float(np.quantile(residuals, q, method="inverted_cdf")) for q in QUANTILES]
