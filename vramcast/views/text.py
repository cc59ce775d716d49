"""The terminal view: 80 columns of plain text, readable without colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from vramcast.core.text import printable
from vramcast.core.units import gib
from vramcast.simulator import curves
from vramcast.tracer.format.trace import Trace, place, step_number
from vramcast.views import style

_CHART_COLUMNS: Final = 68  # arbitrary: 80 with the axis, the width of a terminal
_CHART_LINES: Final = 18  # arbitrary: chart and tables fill a tall terminal once
_AXIS_COLUMNS: Final = 11  # spec: the longest size that `gib` prints for a card, "1023.99 GiB"
_BAR_COLUMNS: Final = 11  # arbitrary
_TOP_GROUPS: Final = 12  # arbitrary
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def draw(trace: Trace, *, card_bytes: int | None = None, title: str = "", beside: style.Beside = None) -> str:
    """Return the view as lines of at most 80 characters, without colours or control codes.

    One column of the chart represents many rows: it shows the row with most live bytes, and the process line at their most
    process bytes. Sizes of 1000 GiB and more make longer lines. For the arguments, see `vramcast.views.save`.
    """
    heading = [printable(title, 80)] if title else []
    live, process = curves.peak_of_live(trace), curves.peak_of_process(trace)
    if live.row < 0 and process.row < 0:
        return "\n".join([*heading, "The trace allocates nothing."]) + "\n"
    lines = [*heading, *_peak_lines(trace, live, process, card_bytes)]
    drawn = style.ranks(trace, beside)
    peak_bytes = max(curves.highest_bytes(one) for _, one in drawn)
    for name, one in drawn:
        lines += ["", *([name] if name else []), *_chart(one, card_bytes, peak_bytes)]
    lines += ["", *_breakdown(trace, process)]
    groups = curves.top_groups(trace, live.row, _TOP_GROUPS)
    if groups:
        lines += ["", *_table(groups)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _peak_lines(trace: Trace, live: curves.Peak, process: curves.Peak, card_bytes: int | None) -> list[str]:
    lines = []
    for name, size_bytes, row in (("allocated", live.live_bytes, live.row), ("process", process.process_bytes, process.row)):
        if row < 0:
            lines.append(f"{name + ' peak':<15}{'unknown':>11}   the trace has none")
        else:
            lines += [f"{name + ' peak':<15}{gib(size_bytes):>11}   at row {row:,}", f"  {place(trace, row, 24)}"]
    lines += [f"  {style.process_words(process)}"] if process.row >= 0 else []
    if card_bytes is not None:
        lines.append(style.card_words(card_bytes, process))
    return lines


def _chart(trace: Trace, card_bytes: int | None, peak_bytes: int) -> list[str]:
    """Return the stacked chart on an axis up to `peak_bytes`, its time axis and its legend."""
    top = style.top_bytes(peak_bytes, card_bytes)
    firsts = np.arange(_CHART_COLUMNS) * len(trace) // _CHART_COLUMNS
    ends = np.maximum(np.append(firsts[1:], len(trace)), firsts + 1)
    all_live, all_process = curves.live_bytes(trace), curves.process_bytes(trace)
    knows_segments = curves.knows_segments(trace)
    rows = np.array([first + int(np.argmax(all_live[first:end])) for first, end in zip(firsts, ends, strict=True)])
    most_process = [int(all_process[first:end].max()) for first, end in zip(firsts, ends, strict=True)]
    layers = style.layers(trace, rows)
    tops = np.cumsum([sizes for _, sizes in layers], axis=0)

    cells = [[" "] * _CHART_COLUMNS for _ in range(_CHART_LINES)]
    labels = [""] * _CHART_LINES
    for size_bytes in style.ticks(top):
        labels[_line(size_bytes, top)] = gib(size_bytes) if size_bytes else "0"
    if card_bytes is not None and card_bytes <= top:
        cells[_line(card_bytes, top)] = ["═"] * _CHART_COLUMNS
        labels[_line(card_bytes, top)] = "card"
    for column in range(_CHART_COLUMNS):
        if knows_segments and most_process[column] > 0:
            cells[_line(most_process[column], top)][column] = "─"
        for line in range(_CHART_LINES):
            middle = (line + 0.5) * top / _CHART_LINES
            if middle < tops[-1, column]:
                cells[line][column] = layers[int(np.searchsorted(tops[:, column], middle, side="right"))][0].letter

    lines = []
    if card_bytes is not None and card_bytes > top:
        lines.append(f"{'card ↑':>{_AXIS_COLUMNS}} {gib(card_bytes)}, {card_bytes / peak_bytes:.1f} times the peak")
    for label, row in zip(reversed(labels), reversed(cells), strict=True):
        lines.append(f"{label:>{_AXIS_COLUMNS}}{'┤' if label else '│'}" + "".join(row))
    margin = " " * (_AXIS_COLUMNS + 1)
    phases = [(span.first, span.end, span.phase.name.lower()) for span in curves.spans(trace)]
    steps = [(first, end, f"step {step_number(step)}") for first, end, step in curves.steps(trace)]
    lines += [margin + _strip(phases, len(trace)), margin + _strip(steps, len(trace))]
    used = [look for look, sizes in layers if sizes.any()]
    legend = [f"{look.letter} {look.name}" for look in used]
    legend += [f"─ {style.PROCESS}"] if knows_segments else []
    legend += ["═ card"] if card_bytes is not None and card_bytes <= top else []
    return [*lines, *_wrapped(legend)]


def _line(size_bytes: int, top: int) -> int:
    """Return the line of the chart for a size, counted from the bottom."""
    return min(max(size_bytes, 0) * _CHART_LINES // top, _CHART_LINES - 1)


def _strip(marks: Sequence[tuple[int, int, str]], n_rows: int) -> str:
    """Return a line of the time axis with the name of each stretch (first row, end, name), cut at the stretch's end."""
    cells = [" "] * _CHART_COLUMNS
    for first_row, end_row, name in marks:
        first, end = (row * _CHART_COLUMNS // n_rows for row in (first_row, end_row))
        cells[first:end] = f"╵{name}"[: end - first].ljust(end - first)
    return "".join(cells)


def _wrapped(words: Sequence[str]) -> list[str]:
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + 3 > 80:
            lines.append("")
        lines[-1] += ("   " if lines[-1] else "") + word
    return lines


def _bar(share: float) -> str:
    eighths = round(share * _BAR_COLUMNS * len(_EIGHTHS))
    full, rest = divmod(eighths, len(_EIGHTHS))
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def _breakdown(trace: Trace, process: curves.Peak) -> list[str]:
    lines = [f"{'':<20}at the peak"]
    for look, size, share in style.shares(trace):
        name = look.name if look.letter == " " else f"{look.letter} {look.name}"
        lines.append(f"{name:<18}{gib(size):>11} {share:>4.0%} {_bar(share)}")
    if process.row >= 0:
        lines.append(f"{'process':<18}{gib(process.process_bytes):>11}")
    return lines


def _table(groups: Sequence[curves.BlockGroup]) -> list[str]:
    lines = [f"{'held at the peak':>16} {'blocks':>7}   {'module':<28}{'operator':<24}"]
    for group in groups:
        letter = style.LOOKS[group.category].letter
        module, op = printable(group.module, 26) or "-", printable(group.op, 23) or "-"
        lines.append(f"{gib(group.size_bytes):>16} {group.n_blocks:>7} {letter} {module:<28}{op:<24}")
    return lines
