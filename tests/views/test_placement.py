"""The packed chart: placements, drawings, escaping and rejected paths."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.core.errors import OutputError, UsageError
from vramcast.core.units import GIB
from vramcast.simulator.settings import Settings
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.operators import Operator
from vramcast.tracer.format.trace import Action, Category, Trace
from vramcast.views import placement, style
from vramcast.views.placement import Packing, by_address, draw_html, draw_png, save

MIB = 2**20
HOSTILE = "</title><script>alert(1)</script>\x1b[31m&\"'$x^{$\u5c64"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


class Page(HTMLParser):
    """The tags of a page, each with its attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def blocks(self) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == "rect" and attributes.get("class") == "block"]


def random_trace(seed: int, n_blocks: int, *, lifetime: int = 40) -> Trace:
    """Return a trace of blocks of random sizes and lifetimes, placed by the simulated allocator."""
    random = np.random.default_rng(seed)
    action: list[int] = []
    block: list[int] = []
    size: list[int] = []
    waiting: list[tuple[int, int]] = []
    for number in range(n_blocks):
        waiting.sort()
        while waiting and waiting[0][0] <= number:
            _, row = waiting.pop(0)
            action.append(Action.FREE_COMPLETED)
            block.append(row)
            size.append(size[row])
        if random.random() < 0.9:
            waiting.append((number + int(random.integers(1, lifetime)), len(action)))
        action.append(Action.ALLOC)
        block.append(len(block))
        size.append(int(random.integers(1, 2 ** int(random.integers(8, 28)))))
    n = len(action)
    category = random.integers(0, len(Category), n)
    trace = Trace.build({"action": action, "block": block, "size_bytes": size, "category": category})
    return simulate(trace, Settings()).replayed()


def births(trace: Trace) -> Any:
    return np.flatnonzero(trace.action == Action.ALLOC)


def overlaps(trace: Trace, found: Packing) -> bool:
    """Return whether two blocks share a byte at the same time, by a check of every pair."""
    ends = {int(trace.block[row]): row for row in np.flatnonzero(trace.action == Action.FREE_COMPLETED)}
    sizes = trace.rounded_bytes()
    blocks = [
        (int(row), ends.get(int(row), len(trace)), int(at), int(at + sizes[row]))
        for row, at in zip(births(trace), found.offset_bytes, strict=True)
    ]
    return any(
        a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3] for i, a in enumerate(blocks) for b in blocks[i + 1 :]
    )


# ------------------------------------------------------------------------------------------------ by_address
def test_offsets_skip_unused_addresses(job_trace: Trace) -> None:
    found = by_address(job_trace)
    # Two segments, 2 MiB at 2^47 and 20 MiB at 64 MiB above: the second one follows the first.
    assert found.offset_bytes.tolist() == [0, 2 * MIB, 12 * MIB, 4096]
    assert found.height_bytes == 22 * MIB
    assert sorted(found.segments.tolist()) == [[0, 14, 0, 2 * MIB], [2, 12, 2 * MIB, 20 * MIB]]


def test_stretch_continues_after_losing_pages() -> None:
    base = 2**47
    rows = [
        (Action.SEGMENT_MAP, base, 60 * MIB),
        (Action.SEGMENT_UNMAP, base + 20 * MIB, 20 * MIB),
        (Action.SEGMENT_UNMAP, base - 2 * MIB, 4 * MIB),
        (Action.SEGMENT_FREE, 2**40, 2 * MIB),  # older than the trace
    ]
    action, address, size_bytes = zip(*rows, strict=True)
    trace = Trace.build({"action": action, "address": address, "size_bytes": size_bytes, "block": [-1] * 4})
    assert sorted(by_address(trace).segments.tolist()) == [
        [0, 1, 0, 60 * MIB], [1, 2, 0, 20 * MIB], [1, 4, 40 * MIB, 20 * MIB], [2, 4, 2 * MIB, 18 * MIB],
    ]  # fmt: skip


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_live_blocks_do_not_overlap(seed: int) -> None:
    trace = random_trace(seed, 60)
    found = by_address(trace)
    assert not overlaps(trace, found)
    assert (found.offset_bytes >= 0).all()
    ends = found.offset_bytes + trace.rounded_bytes()[births(trace)]
    assert ends.max() <= (found.segments[:, 2] + found.segments[:, 3]).max()
    for row, at, end in zip(births(trace).tolist(), found.offset_bytes.tolist(), ends.tolist(), strict=True):
        inside = [s for s in found.segments.tolist() if s[0] < row < s[1] and s[2] <= at and end <= s[2] + s[3]]
        assert len(inside) == 1


def test_trace_without_blocks_has_empty_packing() -> None:
    found = by_address(Trace.build({"action": [], "size_bytes": [], "block": []}))
    assert (len(found.offset_bytes), len(found.segments), found.height_bytes) == (0, 0, 0)


# ------------------------------------------------------------------------------------------------ drawings
@pytest.fixture
def pair(job_trace: Trace) -> list[Packing]:
    """Return the placements of the allocator and of a pool: the four blocks in 11 MiB and 5,120 bytes."""
    planned = Packing(
        "pool, best fit", np.array([11 * MIB, 0, 10 * MIB, 11 * MIB + 4096]), 11 * MIB + 5120,
        np.empty((0, 4), np.int64),
    )  # fmt: skip
    return [by_address(job_trace), planned]


def test_page_uses_same_axes_for_both(job_trace: Trace, pair: list[Packing]) -> None:
    page = Page(draw_html(job_trace, pair, title="my job"))
    text = " ".join(page.texts)
    assert "caching allocator: 22.0 MiB, 1.999 times the allocated peak" in text
    assert "pool, best fit: 11.0 MiB, 1.000 times the allocated peak" in text
    assert "allocated peak 11.0 MiB" in text
    blocks = page.blocks()
    assert len(blocks) == 8
    # The block of 10 MiB is as high and as wide in both, and starts half-way up in one and at the bottom in the other.
    before, after = (sorted(half, key=lambda b: -float(b["height"] or 0))[0] for half in (blocks[:4], blocks[4:]))
    assert before["height"] == after["height"]
    assert before["width"] == after["width"]
    assert float(after["y"] or 0) - float(before["y"] or 0) == pytest.approx(2 * MIB * 520 / (1.06 * 22 * MIB), abs=1)
    assert after["x"] == before["x"]


def test_page_needs_no_script_or_network(job_trace: Trace, pair: list[Packing]) -> None:
    text = draw_html(job_trace, pair)
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "img", "iframe")]
    policy = [attributes["content"] for tag, attributes in page.tags if attributes.get("http-equiv")]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert not re.search(r"https?://|url\(", text)


def test_escapes_untrusted_names(job_trace: Trace) -> None:
    hostile = replace(job_trace, operators=[Operator.of(HOSTILE, HOSTILE)] * len(job_trace.operators))
    page = Page(draw_html(hostile, [by_address(hostile)], title=HOSTILE))
    assert not [tag for tag, _ in page.tags if tag == "script"]
    assert "alert(1)" in " ".join(page.texts)
    assert "\x1b" not in " ".join(page.texts)
    assert draw_png(hostile, [by_address(hostile)], title=HOSTILE).startswith(PNG_MAGIC)


def test_large_block_has_description(job_trace: Trace) -> None:
    text = " ".join(Page(draw_html(job_trace, [by_address(job_trace)])).texts)
    assert "activations 10.0 MiB, step 1, forward, layers.0, aten::relu, rows 3 to 9" in text


def test_page_with_many_blocks_is_small() -> None:
    trace = random_trace(0, 20_000)
    assert (trace.action == Action.ALLOC).sum() == 20_000
    text = draw_html(trace, [by_address(trace)] * 2)
    page = Page(text)
    assert len(text) < 3_000_000
    assert len(page.blocks()) == 2 * placement._NAMED
    looks = [look.name for look in style.LOOKS.values()]
    assert all(any(name == text for text in page.texts) for name in looks)


def test_small_blocks_stay_visible() -> None:
    rows = [(Action.ALLOC, 0, 2**30, 0), (Action.ALLOC, 2**30, 512, 1), (Action.FREE_COMPLETED, 0, 512, 1)]
    rows += [(Action.SNAPSHOT, 0, 0, -1)] * 20_000
    action, address, size_bytes, block = zip(*rows, strict=True)
    trace = Trace.build(
        {"action": action, "address": address, "size_bytes": size_bytes, "block": block, "category": [2, 4, *[7] * 20_001]}
    )
    small = Page(draw_html(trace, [by_address(trace)])).blocks()[1]
    assert (small["width"], small["height"]) == ("0.5", "0.5")


def test_draws_png_without_blocks(pair: list[Packing], job_trace: Trace) -> None:
    empty = Trace.build({"action": [], "size_bytes": [], "block": []})
    assert draw_png(empty, [by_address(empty)]).startswith(PNG_MAGIC)
    assert len(draw_png(job_trace, pair, title="my job")) > 10_000
    assert "0.0 MiB" in draw_html(empty, [by_address(empty)])


def test_extension_selects_format(job_trace: Trace, pair: list[Packing], tmp_path: Path) -> None:
    save(job_trace, pair, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG_MAGIC)
    save(job_trace, pair, tmp_path / "a.HTML", title="my job")
    assert (tmp_path / "a.HTML").read_text() == draw_html(job_trace, pair, title="my job")
    with pytest.raises(UsageError, match=r"use \.png or \.html"):
        save(job_trace, pair, tmp_path / "a.txt")
    with pytest.raises(OutputError, match="cannot be written"):
        save(job_trace, pair, tmp_path / "no" / "a.html")


def test_png_needs_matplotlib(job_trace: Trace, pair: list[Packing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs matplotlib"):
        save(job_trace, pair, tmp_path / "a.png")


def test_draws_heights_beyond_32_bits(tmp_path: Path) -> None:
    rows = [(Action.ALLOC, 0, 60 * GIB, 0), (Action.ALLOC, 60 * GIB, 20 * GIB, 1)]
    action, address, size_bytes, block = zip(*rows, strict=True)
    trace = Trace.build({"action": action, "address": address, "size_bytes": size_bytes, "block": block})
    blocks = Page(draw_html(trace, [by_address(trace)])).blocks()
    heights = [float(b["height"] or 0) for b in blocks]
    assert heights[0] == pytest.approx(3 * heights[1], rel=0.01)
