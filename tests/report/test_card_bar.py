"""The bar of the card as numbers: the parts of the peak, the margin, and the excess over the card."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vramcast.estimates.result import Estimate
from vramcast.report.card_bar import card_bar

MIB = 2**20
Make = Callable[..., Estimate]


def test_stretches_tile_the_bar(make: Make) -> None:
    estimate = make()
    bar, card_bytes = card_bar(estimate.to_dict()), estimate.card_bytes
    assert [one.look.name for one in bar.held] == ["context", "parameters", "activations", "workspaces", "fragmentation"]
    assert sum(one.size_bytes for one in bar.held) == estimate.process
    ends = [one.start + one.share for one in (*bar.held, *bar.margin)]
    assert [one.start for one in (*bar.held, *bar.margin)] == pytest.approx([0, *ends[:-1]])
    assert bar.peak.at == pytest.approx(estimate.process / card_bytes)
    assert bar.bound is not None
    assert bar.bound.at == pytest.approx(estimate.upper_bound / card_bytes)
    assert ends[-1] == pytest.approx(bar.bound.at, abs=1e-6)
    assert [one.look.name for one in bar.margin] == [f"margin: {part.part}" for part in estimate.margin()]
    assert (bar.card.at, bar.is_over) == (1.0, False)


@pytest.mark.parametrize(("memory_mib", "beyond"), [(1100, "the bound"), (600, "the peak")])
def test_axis_ends_at_bound_beyond_card(make: Make, memory_mib: int, beyond: str) -> None:
    estimate = make(memory_mib)
    bar = card_bar(estimate.to_dict())
    assert (estimate.process > estimate.card_bytes) == (beyond == "the peak")
    assert bar.is_over
    assert bar.bound is not None
    assert bar.bound.at == 1.0
    assert bar.card.at == pytest.approx(memory_mib * MIB / estimate.upper_bound)
    assert all(one.start + one.share <= 1.0 + 1e-9 for one in (*bar.held, *bar.margin))


def test_no_margin_without_bound(make: Make) -> None:
    bar = card_bar(make(unbounded_calls=("nonzero",)).to_dict())
    assert (bar.bound, bar.margin) == (None, ())
    assert "upper bound" not in bar.words


def test_words_describe_the_bar(make: Make) -> None:
    words = card_bar(make().to_dict()).words
    for part in ("peak 1013.2 MiB: context 513.2 MiB, parameters 100.0 MiB", "upper bound", "; card 39.56 GiB"):
        assert part in words
