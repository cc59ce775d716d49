"""Colours, scales and names shared by the views."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.units import GIB, MIB
from vramcast.simulator import curves
from vramcast.tracer.format.trace import Action, Category, Trace
from vramcast.views import style


def test_every_category_has_its_own_look() -> None:
    assert list(style.LOOKS) == list(Category)
    looks = [*style.LOOKS.values(), style.CONTEXT]
    for what in ({look.name for look in looks}, {look.colour for look in looks}, {look.letter for look in looks}):
        assert len(what) == len(looks)


@given(top=st.integers(1, 2**50))
def test_ticks_are_few_and_even(top: int) -> None:
    ticks = style.ticks(top)
    assert 1 < len(ticks) <= 6 or top < 2
    assert ticks[0] == 0
    assert ticks[-1] <= top
    assert len({after - before for before, after in pairwise(ticks)}) <= 1


def test_ticks_are_round() -> None:
    assert [tick / GIB for tick in style.ticks(int(4.2 * GIB))] == [0, 1, 2, 3, 4]
    assert [tick / MIB for tick in style.ticks(300 * MIB)] == [0, 100, 200, 300]


@pytest.mark.parametrize(("card", "is_in_view"), [(None, False), (50, True), (100, True), (250, True), (251, False)])
def test_scale_reaches_near_card(card: int | None, is_in_view: bool) -> None:
    top = style.top_bytes(100, card)
    assert top >= 100
    assert (card is not None and card <= top) is is_in_view


def test_parts_sum_to_process_peak(process_trace: Trace) -> None:
    parts = style.parts(process_trace)
    assert parts[0][0] == style.CONTEXT
    assert sum(size_bytes for _, size_bytes in parts) == curves.peak_of_process(process_trace).process_bytes
    assert sum(share for _, _, share in style.shares(process_trace)) == pytest.approx(1)


def test_context_is_lowest_layer(process_trace: Trace) -> None:
    rows = np.array([0, 5, 13])
    layers = style.layers(process_trace, rows)
    assert [look for look, _ in layers] == [style.CONTEXT, *style.LOOKS.values()]
    assert layers[0][1].tolist() == [5 * MIB, 5 * MIB, 8 * MIB]
    assert [sizes.tolist() for _, sizes in layers[1:]] == curves.live_by_category(process_trace, rows).tolist()


def test_compares_card_with_process() -> None:
    peak = curves.Peak(3, GIB, 5 * GIB, {})
    assert style.process_words(peak) == "segments 5.00 GiB, context 1.00 GiB"
    assert style.card_words(8 * GIB, peak) == "card 8.00 GiB: 2.00 GiB left at the process peak"
    assert style.card_words(4 * GIB, peak) == "card 4.00 GiB: 2.00 GiB short"


def test_notes_missing_context() -> None:
    assert style.process_words(curves.Peak(3, 0, 5 * GIB, {})) == "segments 5.00 GiB, no context in the trace"


def test_labels_steps_with_room() -> None:
    columns = {"action": [Action.SNAPSHOT] * 100, "size_bytes": [0] * 100, "block": [-1] * 100}
    trace = Trace.build({**columns, "step": [row // 5 for row in range(100)]})
    assert style.spaced_steps(trace, 0.05) == [(row, row // 5) for row in range(0, 100, 5)]
    assert style.spaced_steps(trace, 0.12) == [(row, row // 5) for row in range(0, 100, 15)]


def test_shades_phases_unless_too_many() -> None:
    def flickering(n_rows: int) -> Trace:
        columns = {"action": [Action.SNAPSHOT] * n_rows, "size_bytes": [0] * n_rows, "block": [-1] * n_rows}
        return Trace.build({**columns, "phase": [row % 2 for row in range(n_rows)]})

    assert len(style.shaded_spans(flickering(500))) == 500
    assert style.shaded_spans(flickering(501)) == []
