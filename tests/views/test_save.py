"""The drawings and their selection: content, escaping and rejected paths."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.cli.main import main, parser
from vramcast.cli.options import finish
from vramcast.cli.what_if_options import Questions
from vramcast.core.errors import OutputError, UsageError
from vramcast.core.text import printable
from vramcast.core.units import GIB
from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.hardware.context import context_bytes
from vramcast.jobs.job import Command, Job
from vramcast.simulator import curves
from vramcast.simulator.trace_edits import with_context
from vramcast.tracer.format.operators import Operator
from vramcast.tracer.format.trace import RANKS, Action, Category, Phase, Trace
from vramcast.views import save, style
from vramcast.views.charts.chart import ALARM, ON_WHITE
from vramcast.views.text import draw as draw_text
from vramcast.views.timeline import draw_html

MIB = 2**20
HOSTILE = "</script><script>alert(1)</script><!--\x1b[31m&\"'$x^{$\u2028\ud800\u5c64"
EMPTY = Trace.build({"action": [], "size_bytes": [], "block": []})
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def renamed(trace: Trace, name: str) -> Trace:
    return replace(trace, operators=[Operator.of(name, name)] * len(trace.operators))


def nothing_live() -> Trace:
    return Trace.build({"action": [Action.OOM, Action.FREE_COMPLETED], "size_bytes": [10, 20], "block": [-1, -1]})


def segments_only() -> Trace:
    """Return a trace that frees a segment older than itself, so that its reserved bytes go below 0."""
    return Trace.build({"action": [Action.SEGMENT_FREE, Action.SEGMENT_ALLOC], "size_bytes": [4 * MIB, MIB], "block": [-1, -1]})


def long_trace(n_blocks: int) -> Trace:
    """Return a trace of blocks of random size, category, operator, module and lifetime, without repetition."""
    random = np.random.default_rng(0)
    lifetime = 50
    action: list[int] = []
    block: list[int] = []
    for number in range(n_blocks + lifetime):
        if number < n_blocks:
            action.append(Action.ALLOC)
            block.append(len(block))
        if number >= lifetime:
            action.append(Action.FREE_COMPLETED)
            block.append(number - lifetime if number < 2 * lifetime else lifetime + 2 * (number - 2 * lifetime))
    n = len(action)
    return Trace.build(
        {
            "action": action,
            "block": block,
            "size_bytes": random.integers(1, 2**30, n),
            "category": random.integers(0, len(Category), n),
            "step": np.arange(n) // 1000,
            "phase": (np.arange(n) // 200) % len(Phase),
            "op": random.integers(0, 3000, n),
            "module": random.integers(0, 3000, n),
        },
        ops=[f"aten::operator_{i}" for i in range(3000)],
        modules=[f"model.layers.{i}.a_rather_long_name.of.a_module.deep.inside.{'x' * 300}" for i in range(3000)],
    )


# ------------------------------------------------------------------------------------------------ save
@pytest.mark.parametrize(
    ("name", "beginning"),
    [("a.png", PNG_MAGIC), ("a.html", b"<!DOCTYPE html>"), ("A.TXT", b"title\n"), ("a.json", b'{"traceEvents"')],
)
def test_extension_selects_view(process_trace: Trace, tmp_path: Path, name: str, beginning: bytes) -> None:
    save(process_trace, tmp_path / name, card_bytes=GIB, title="title")
    assert (tmp_path / name).read_bytes().startswith(beginning)


@pytest.mark.parametrize("name", ["a.pdf", "a", "html", "a.png.gz", ".png"])
def test_rejects_other_extension_without_writing(job_trace: Trace, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"use \.png, \.html, \.txt or \.json"):
        save(job_trace, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.png", "a.html", "a.txt", "a.json"])
def test_names_missing_folder(job_trace: Trace, tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        save(job_trace, tmp_path / "none" / name)


@pytest.mark.parametrize("trace", [EMPTY, nothing_live(), segments_only()], ids=["empty", "nothing live", "segments only"])
@pytest.mark.parametrize("name", ["a.png", "a.html", "a.txt", "a.json"])
@pytest.mark.parametrize("card_bytes", [None, 10 * MIB, 2**37])
def test_draws_trace_without_blocks(trace: Trace, tmp_path: Path, name: str, card_bytes: int | None) -> None:
    for drawn in (trace, with_context(trace, [(len(trace), 5 * MIB)])):
        save(drawn, tmp_path / name, card_bytes=card_bytes)
        assert (tmp_path / name).stat().st_size > 20


@pytest.mark.parametrize("name", ["a.png", "a.html", "a.txt", "a.json"])
def test_draws_hostile_names(job_trace: Trace, tmp_path: Path, name: str) -> None:
    save(renamed(job_trace, HOSTILE), tmp_path / name, card_bytes=GIB, title=HOSTILE)
    assert (tmp_path / name).stat().st_size > 20


def test_png_error_names_package(job_trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[plot\]'"):
        save(job_trace, tmp_path / "a.png")
    save(job_trace, tmp_path / "a.html")


@pytest.mark.integration
def test_import_is_light() -> None:
    code = "import sys, vramcast.views, vramcast.cli.main as m; m.parser(); print({'SLOW'} & set(sys.modules))"
    code = code.replace("SLOW", "', '".join(("jinja2", "matplotlib", "torch")))
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


# ------------------------------------------------------------------------------------------------ text
def test_text_shows_stack_peaks_and_tables(job_trace: Trace) -> None:
    text = draw_text(with_context(job_trace, [(0, 5 * MIB)]), card_bytes=50 * MIB, title="a job")
    lines = text.splitlines()
    assert lines[:7] == [
        "a job",
        "allocated peak    11.0 MiB   at row 5",
        "  step 1, forward, layers.1, aten::conv2d",
        "process peak      27.0 MiB   at row 3",
        "  step 1, forward",
        "  segments 22.0 MiB, context 5.0 MiB",
        "card 50.0 MiB: 23.0 MiB left at the process peak",
    ]
    chart = [line[12:] for line in lines if len(line) > 11 and line[11] in "┤│"]
    assert len(chart) == 18
    # The axis ends at 53 MiB, a line is 2.94 MiB: up to its middle, 5 MiB of context are two lines, and 10 MiB more three.
    in_row_5 = [line.ljust(68)[24] for line in reversed(chart)]
    assert in_row_5 == ["x", "x", "A", "A", "A", *" " * 4, "─", *" " * 6, "═", " "]
    assert "x context   P parameters   A activations   W workspaces   ? unknown" in text
    assert "─ process: context + segments" in text
    assert "x context             5.0 MiB  19% ██" in lines
    assert "A activations        10.0 MiB  37% ████▏" in lines
    assert "fragmentation        11.0 MiB  41% ████▌" in lines
    assert "process              27.0 MiB" in lines
    assert "        10.0 MiB       1 A layers.0                    aten::relu" in lines
    assert re.search(r"╵step 1 +╵step 2", text)
    assert re.search(r"╵build +╵forward +╵backward +╵optimizer", text)


def test_ranks_share_an_axis(job_trace: Trace, tmp_path: Path) -> None:
    trace = replace(job_trace, header={RANKS: {"world_size": 8, "fullest": 0, "peaks": [[0, 11 * MIB, 22 * MIB]]}})
    smaller = Trace.build({"action": [Action.ALLOC], "size_bytes": [MIB], "block": [0]})
    text = draw_text(trace, beside=(7, smaller))
    first, second = text.index("rank 0 of 8, which reserves most"), text.index("\nrank 7\n")
    assert first < second < text.index("at the peak")
    assert text.count("20.0 MiB┤") == 2  # both axes reach up to the larger one's peak
    page = draw_html(trace, beside=(7, smaller))
    assert [page.count(part) for part in ("<figcaption>rank 0 of 8", "<figcaption>rank 7", 'id="chart"')] == [1, 1, 1]
    assert "rank" not in draw_text(trace)
    for name in ("a.png", "a.html", "a.txt", "a.json"):
        save(trace, tmp_path / name, card_bytes=GIB, beside=(7, EMPTY))


def test_reserved_is_unknown_without_segments(job_trace: Trace) -> None:
    trace = Trace.build({"action": [Action.ALLOC], "size_bytes": [4 * MIB], "block": [0]})
    trace = with_context(trace, [(0, 0)])
    text, page = draw_text(trace, card_bytes=8 * MIB), draw_html(trace, card_bytes=8 * MIB)
    assert "process peak       unknown   the trace has none" in text
    assert "T temporaries         4.0 MiB 100% ███████████" in text
    assert "process peak unknown: the trace has none" in page
    assert style.PROCESS not in page
    for view in (text, page):
        assert "card 8.0 MiB; the trace has no segments, so the process peak is unknown" in view
        assert "-4.0 MiB" not in view
    assert "─" not in text
    assert ("th", "process") not in Page(page).texts
    assert ("th", "process") in Page(draw_html(job_trace)).texts


def test_distant_card_is_named_only(job_trace: Trace) -> None:
    text = draw_text(job_trace, card_bytes=2200 * MIB)
    assert "card ↑ 2.15 GiB, 100.0 times the peak" in text
    assert "═" not in text


@settings(deadline=None)
@given(
    name=st.text(),
    card_bytes=st.none() | st.integers(1, 2**39),
    context=st.integers(0, 2**32),
    segment_bytes=st.integers(0, 2**39),
)
def test_text_is_plain_and_80_wide(name: str, card_bytes: int | None, context: int, segment_bytes: int) -> None:
    trace = Trace.build(
        {
            "action": [Action.CONTEXT, Action.SEGMENT_ALLOC, Action.ALLOC, Action.ALLOC],
            "size_bytes": [context, segment_bytes, segment_bytes // 2, 1],
            "block": [-1, -1, 2, 3],
            "op": [0, 0, 0, -1],
            "module": [-1, -1, 0, 0],
        },
        ops=[name],
        modules=[name * 5],
    )
    lines = draw_text(trace, card_bytes=card_bytes, title=name * 3).split("\n")
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)


# ------------------------------------------------------------------------------------------------ png
def pixels(path: Path) -> Any:
    from matplotlib.image import imread

    return (imread(path)[:, :, :3] * 255).round().astype(int)


def has_colour(picture: Any, colour: str, at_least: int) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return int((picture == [red, green, blue]).all(axis=2).sum()) >= at_least


def test_png_has_colours_of_categories(job_trace: Trace, tmp_path: Path) -> None:
    save(job_trace, tmp_path / "a.png", card_bytes=50 * MIB)
    picture = pixels(tmp_path / "a.png")
    assert picture.shape == (770, 1430, 3)
    seen = {category for category, look in style.LOOKS.items() if has_colour(picture, look.colour, 50)}
    assert seen == {Category.PARAMETER, Category.ACTIVATION, Category.WORKSPACE, Category.UNKNOWN}
    assert has_colour(picture, ON_WHITE[ALARM], 200)
    # Activations are 10 of 53 MiB for six of fourteen rows: a tenth of the axes, which fill about two thirds of the picture.
    assert has_colour(picture, style.LOOKS[Category.ACTIVATION].colour, 770 * 1430 // 30)


def test_png_draws_context_lowest(process_trace: Trace, tmp_path: Path) -> None:
    save(process_trace, tmp_path / "a.png")
    picture = pixels(tmp_path / "a.png")
    # 5 of 32 MiB for thirteen of sixteen rows, and 8 for three: more than a tenth of the axes, and the lowest of them.
    red, green, blue = (int(style.CONTEXT.colour[i : i + 2], 16) for i in (1, 3, 5))
    is_context = (picture == [red, green, blue]).all(axis=2)
    assert is_context.sum() > 770 * 1430 // 20
    is_activation = (picture == [0x56, 0xB4, 0xE9]).all(axis=2)
    assert np.flatnonzero(is_activation.any(axis=1)).max() < np.flatnonzero(is_context.any(axis=1)).max()


def test_no_line_without_card(job_trace: Trace, tmp_path: Path) -> None:
    save(job_trace, tmp_path / "a.png")
    assert not has_colour(pixels(tmp_path / "a.png"), ON_WHITE[ALARM], 1)


def test_does_not_change_matplotlib(job_trace: Trace, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    before = (plt.get_backend(), plt.get_fignums(), dict(plt.rcParams))
    save(job_trace, tmp_path / "a.png")
    assert (plt.get_backend(), plt.get_fignums(), dict(plt.rcParams)) == before


# ------------------------------------------------------------------------------------------------ html
class Page(HTMLParser):
    """The content of a page: its elements, its text, and whether they close in order."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    @property
    def data(self) -> dict[str, Any]:
        """Return the JSON of the page's script."""
        (text,) = [text for tag, text in self.texts if tag == "script" and text.startswith("{")]
        return dict(json.loads(text))


def test_page_holds_exact_curves(process_trace: Trace) -> None:
    page = Page(draw_html(process_trace))
    data = page.data
    rows = curves.sampled_rows(process_trace, 1000)
    assert data["row"] == rows.tolist()
    assert data["live"] == curves.live_by_category(process_trace, rows).tolist()
    assert data["reserved"] == process_trace.reserved_bytes()[rows].tolist()
    assert data["context"] == curves.context_bytes(process_trace)[rows].tolist()
    assert data["n"] == 16
    named = [data["ops"][op] if op >= 0 else None for op in data["op"]]
    assert named == [None, None, None, None, "aten::relu", "aten::conv2d", *[None] * (len(rows) - 6)]
    # The series painted last is lowest in the stack, below the line.
    assert [text for tag, text in page.texts if tag == "title"][-3:] == ["context", style.PROCESS, "allocated peak 11.0 MiB"]
    assert ("th", "context") in page.texts


def test_page_needs_no_network(job_trace: Trace) -> None:
    text = draw_html(job_trace, card_bytes=GIB, title="a job")
    page = Page(text)
    assert "//" not in text
    assert "url(" not in text
    assert "@import" not in text
    loading = {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}
    assert [(tag, loading & set(attributes)) for tag, attributes in page.elements if loading & set(attributes)] == []
    policy = [attributes["content"] for tag, attributes in page.elements if "http-equiv" in attributes]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]


def test_page_is_accessible_and_dark(job_trace: Trace) -> None:
    text = draw_html(job_trace, card_bytes=GIB, title="a job")
    page = Page(text)
    (chart,) = [attributes for _, attributes in page.elements if attributes.get("id") == "chart"]
    assert chart["role"] == "img"
    assert "allocated peak 11.0 MiB in step 1, forward, layers.1, aten::conv2d" in str(chart["aria-label"])
    assert ("title", "a job") in page.texts
    assert ("title", "activations") in page.texts
    assert ("html", {"lang": "en"}) in page.elements
    assert "@media (prefers-color-scheme: dark)" in text


def test_page_escapes_names(job_trace: Trace) -> None:
    text = draw_html(renamed(job_trace, HOSTILE), title=HOSTILE)
    page, plain = Page(text), Page(draw_html(renamed(job_trace, "name"), title="name"))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert sum("alert(1)" in content for tag, content in page.texts if tag == "script") == 1
    (data,) = [content for tag, content in page.texts if tag == "script" and content.startswith("{")]
    assert not {"<", ">", "&"} & set(data)
    assert page.data["ops"] == [printable(HOSTILE)] * len(plain.data["ops"])
    assert ("code", printable(HOSTILE)) in page.texts


@pytest.mark.parametrize("n_blocks", [20_000, pytest.param(150_000, marks=pytest.mark.release)])
def test_long_trace_gives_small_page(n_blocks: int) -> None:
    trace = long_trace(n_blocks)
    assert len(trace) == 2 * n_blocks
    trace = with_context(trace, [(row, MIB) for row in range(0, 2 * n_blocks, 1000)])
    text = draw_html(trace, card_bytes=80 * GIB)
    assert len(text.encode()) < 1_000_000
    data = Page(text).data
    peak = curves.peak_of_live(trace)
    place = data["row"].index(peak.row)
    assert [sizes[place] for sizes in data["live"]] == list(peak.by_category.values())


@pytest.mark.integration
def test_script_describes_pointer_position(process_trace: Trace, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    page = Page(draw_html(process_trace))
    (script,) = [text for tag, text in page.texts if tag == "script" and "use strict" in text]
    # A document of four elements; the pointer visits a few positions, and two keys are pressed.
    program = """
      const make = text => ({textContent: text, style: {}, on: {}, setAttribute(key, value) { this[key] = value; },
        addEventListener(kind, listener) { this.on[kind] = listener; }, getScreenCTM: () => ({inverse: () => null})});
      const elements = {data: make(process.argv[2]), chart: make(""), pointer: make(""), said: make("")};
      globalThis.document = {getElementById: id => elements[id]};
      globalThis.DOMPoint = class { constructor(x, y) { this.x = x; this.y = y; } matrixTransform() { return this; } };
    """
    program += script
    program += """
      const said = [];
      const data = JSON.parse(process.argv[2]);
      for (const row of [-5, 5, 6.5, 99]) {
        elements.chart.on.pointermove({clientX: data.left + row * data.width / data.n, clientY: 0});
        said.push([elements.said.textContent, elements.pointer.x1]);
      }
      for (const key of ["ArrowLeft", "PageUp"]) {
        elements.chart.on.keydown({key, preventDefault() {}});
        said.push([elements.said.textContent.split(",")[0], elements.pointer.x1]);
      }
      console.log(JSON.stringify(said));
    """
    (tmp_path / "page.js").write_text(program)
    (data,) = [text for tag, text in page.texts if tag == "script" and text.startswith("{")]
    ran = subprocess.run([node, str(tmp_path / "page.js"), data], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    texts = [text for text, _ in json.loads(ran.stdout)]
    peak = (
        "row 5, step 1, forward, layers.1, aten::conv2d\n"
        "live 11.0 MiB, reserved 22.0 MiB, context 5.0 MiB, process 27.0 MiB\n"
        "parameters 0.0 MiB, activations 10.0 MiB, workspaces 1.0 MiB"
    )
    # Rows 6 and 8 change nothing, so they are left out.
    assert texts[0].endswith("\nlive 0.0 MiB, reserved 0.0 MiB, context 5.0 MiB, process 5.0 MiB\n")
    assert texts[1:3] == [peak, peak]
    assert texts[3].startswith("row 14, step 2, optimizer\n")
    assert texts[4:] == ["row 13", "row 0"]


# ------------------------------------------------------------------------------------------------ estimate and command line
@pytest.fixture
def estimate(process_trace: Trace) -> Estimate:
    card = device("a100-40gb")
    return Estimate(
        job=Job(card, target="file.py:model"), trace=process_trace, allocated=0, reserved=22 * MIB, process=0,
        min_feasible=None, context=context_bytes(card.key, 13, ()), estimator=Estimator(),
        bound=PublicBound(22 * MIB, frozenset()),
        tracer="nullgpu", torch="2.11.0",
        cuda_major=13, steps=1,
    )  # fmt: skip


def test_estimate_plots_card_and_context(estimate: Estimate, tmp_path: Path) -> None:
    estimate.plot(tmp_path / "a.txt")
    text = (tmp_path / "a.txt").read_text()
    assert text == estimate.plot_text()
    assert text.startswith("file.py:model on NVIDIA A100")
    assert "process peak      30.0 MiB   at row 13" in text
    assert "card 39.56 GiB: 39.53 GiB left at the process peak" in text


def test_views_have_titles(estimate: Estimate) -> None:
    script = replace(estimate, job=Job(device("t4"), command=Command(("train.py", "--x"))))
    assert script.plot_text().startswith("train.py on ")
    assert replace(estimate, job=Job(device("t4"), model=b"pickled")).plot_text().startswith("job on ")


@pytest.fixture
def options() -> Callable[..., argparse.Namespace]:
    return lambda *given: parser().parse_args(["estimate", "file.py:model", "--on", "a100-40gb", *given])


def test_plot_writes_file_or_prints_text(
    estimate: Estimate, options: Callable[..., argparse.Namespace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(options("--plot", str(tmp_path / "a.html")), estimate, Questions(options()))
    plain = capsys.readouterr()
    assert (tmp_path / "a.html").read_text() == draw_html(
        estimate.trace,
        card_bytes=estimate.job.total_bytes,
        title="file.py:model on NVIDIA A100-SXM4-40GB",
    )
    finish(options("--plot", "-"), estimate, Questions(options()))
    said = capsys.readouterr()
    assert said.out.startswith(plain.out)
    assert (said.out[len(plain.out) :].lstrip("\n"), said.err) == (estimate.plot_text(), "")


def test_json_moves_text_to_stderr(
    estimate: Estimate, options: Callable[..., argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    finish(options("--plot", "-", "--json"), estimate, Questions(options()))
    said = capsys.readouterr()
    assert json.loads(said.out)["schema"] == 1
    assert said.err.lstrip("\n") == estimate.plot_text()


def test_terminal_without_unicode(
    estimate: Estimate, options: Callable[..., argparse.Namespace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        finish(options("--plot", "-"), estimate, Questions(options()))
    assert "?" in (tmp_path / "out").read_text()


@pytest.mark.parametrize("verb", [["estimate", "x"], ["check", "x"], ["run", "--"]])
def test_rejects_wrong_extension_before_tracing(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb[0], "--plot", "timeline.pdf", *verb[1:]]) == 2
    assert "use .png, .html, .txt or .json" in capsys.readouterr().err


@pytest.mark.usefixtures("auto_tracer")
def test_plots_traced_job(tiny_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = [f"{tiny_models}:wide", "--batch", "64x1024", "--labels", "64x1024", "--device", "a100-40gb"]
    assert main(["estimate", *job, "--plot", str(tmp_path / "a.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1
    assert (tmp_path / "a.png").read_bytes().startswith(PNG_MAGIC)
