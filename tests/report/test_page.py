"""The page and the fragment without a browser: well formed, answer first, escaped text, nothing loaded."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import html5lib
import pytest

from vramcast.cli.main import main, parser
from vramcast.cli.options import finish
from vramcast.cli.what_if_options import Questions
from vramcast.core.errors import OutputError, UsageError
from vramcast.estimates.advice_rows import Advice, Row
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.jobs.job import Command, Job, TensorSpec, Training
from vramcast.jobs.ranks import World
from vramcast.report import draw_fragment, draw_page, save
from vramcast.report.answer import lines
from vramcast.report.repeat import python_call
from vramcast.simulator.trace_edits import with_context
from vramcast.tracer.format.trace import COURSE, RANKS, Trace

MIB = 2**20
Make = Callable[..., Estimate]
HTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"


class Page:
    """A page as a tree; a parse error, such as an unclosed or misplaced element, is rejected."""

    def __init__(self, text: str) -> None:
        self.root = html5lib.HTMLParser(strict=True).parse(text)

    def all(self, name: str, *, of: str = HTML) -> list[Any]:
        return list(self.root.iter(f"{of}{name}"))

    def words(self, name: str, *, of: str = HTML) -> list[str]:
        return [" ".join(" ".join(one.itertext()).split()) for one in self.all(name, of=of)]

    @property
    def classes(self) -> set[str]:
        return {name for one in self.root.iter() if isinstance(one.tag, str) for name in one.get("class", "").split()}


def framed(fragment: str) -> str:
    return f"<!DOCTYPE html><html lang='en'><head><title>n</title></head><body><main>{fragment}</main></body></html>"


# ------------------------------------------------------------------------------------------------ the answer
@pytest.mark.parametrize(
    ("memory_mib", "word", "says"),
    [
        (None, "Fits: at most", "stay free above the upper bound."),
        (1100, "Uncertain: needs", "The peak fits, but the upper bound does not"),
        (600, "Does not fit: needs", "413.2 MiB are missing."),
    ],
)
def test_answer_comes_first_and_matches_check(make: Make, memory_mib: int | None, word: str, says: str) -> None:
    estimate = make(memory_mib)
    for text in (draw_page(estimate), framed(draw_fragment(estimate))):
        first, *others = Page(text).words("p")[("vramcast" in Page(text).classes) :]
        assert first.startswith(word)
        assert [line.words for line in lines(estimate)] == [one.split(" ", 1)[1].strip() for one in others[:5]]
        assert says in " ".join(others)
    assert word.lower().startswith(f"{estimate.verdict.value}:")


def test_omits_bound_that_does_not_hold(make: Make) -> None:
    page = Page(draw_page(make(unbounded_calls=("nonzero",))))
    text = " ".join(page.words("p"))
    assert "No bound holds, because no largest size is known for nonzero." in text
    assert "at most" not in text
    assert "Parts of the margin" not in page.words("h2")


# ------------------------------------------------------------------------------------------------ the page
def test_sections_are_in_order(make: Make) -> None:
    page = Page(draw_page(make()))
    assert page.words("h1") == ["file.py:model on NVIDIA A100-SXM4-40GB"]
    assert page.words("h2") == [
        "Peaks",
        "Parts of the margin",
        "Timeline",
        "Memory of the process",
        "Modules at the peak",
        "Largest blocks at the peak",
        "Assumptions",
        "Repeat the estimate",
    ]


def test_drawings_have_labels_and_tables_have_headers(make: Make) -> None:
    page = Page(draw_page(make()))
    for drawing in page.all("svg", of=SVG):
        is_inner = not drawing.get("class")  # a coordinate in another drawing
        assert is_inner or drawing.get("aria-hidden") == "true" or len(drawing.get("aria-label")) > 20
    for table in page.all("table"):
        heads = list(table.iter(f"{HTML}th"))
        assert {head.get("scope") for head in heads} <= {"col", "row"}
        assert heads
    for frame in page.root.iter(f"{HTML}div"):
        if frame.get("class") == "scroll":
            assert (frame.get("tabindex"), frame.get("role")) == ("0", "region")
            assert frame.get("aria-label")
    ids = [one.get("id") for one in page.root.iter() if isinstance(one.tag, str) and one.get("id")]
    assert len(ids) == len(set(ids))


def test_optional_tables_appear_when_needed(make: Make) -> None:
    plain = make()
    header = {
        RANKS: {"world_size": 8, "fullest": 0, "peaks": [[0, 450 * MIB, 500 * MIB], [7, 440 * MIB, 470 * MIB]]},
    }
    estimate = replace(plain, trace=replace(plain.trace, header={**plain.trace.header, **header}))
    rows = (
        Row("half the batch", "twice the launches", 300 * MIB, 700 * MIB, True, {"t4": True, "h100": True}),
        Row("another optimizer", "", reason="it has no name"),
    )
    words = Page(draw_page(estimate, advice=Advice(rows, 0.99))).words("tr")
    assert "rank 7 440.0 MiB 470.0 MiB 983.2 MiB" in words
    assert "half the batch 300.0 MiB 700.0 MiB fits Tesla T4 twice the launches" in words
    assert "another optimizer not traced it has no name" in words
    assert {"Ranks", "Variants of the job"} & set(Page(draw_page(plain)).words("h2")) == set()
    assert COURSE not in plain.trace.header


def test_advice_for_an_engine_has_tokens_or_none(make: Make) -> None:
    rows = (
        Row("2 cards", "as many cards", 300 * MIB, None, None, {"t4": False}, kv_cache_tokens=2000),
        Row("as it is", "none", 300 * MIB, None, False, {"t4": False}),
    )
    words = Page(draw_page(make(), advice=Advice(rows, 0.99, is_of_engine=True))).words("tr")
    assert "change reserved tokens this card fits from price" in words
    assert "2 cards 300.0 MiB 2,000 unknown none as many cards" in words
    assert "as it is 300.0 MiB none does not fit none none" in words


@pytest.mark.parametrize("has_context", [False, True])
def test_trace_without_blocks_has_a_page(make: Make, has_context: bool) -> None:
    trace = Trace.build({"action": [], "size_bytes": [], "block": []})
    estimate = make(trace=with_context(trace, [(0, MIB)]) if has_context else trace, allocated=0, reserved=0)
    assert Page(draw_page(estimate)).words("h2")
    assert Page(framed(draw_fragment(estimate))).words("p")


def test_page_loads_nothing(make: Make) -> None:
    for text in (draw_page(make()), draw_fragment(make())):
        loading = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"}
        page = html5lib.parse(text, namespaceHTMLElements=False)
        assert [one.tag for one in page.iter() if loading & set(one.keys())] == []
        assert not re.search(r"https?:|url\(|@import", text)
    policy = [one.get("content") for one in Page(draw_page(make())).all("meta") if one.get("http-equiv")]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]


def test_hostile_job_adds_no_element(hostile: Estimate, make: Make) -> None:
    named = make(names=("a", "a", "a"), warnings=("a",), unknown=("a",), out_of_memory="a")
    for draw in (draw_page, lambda estimate: framed(draw_fragment(estimate))):
        page, plain = Page(draw(hostile)), Page(draw(named))
        tags = [[one.tag for one in each.root.iter() if isinstance(one.tag, str)] for each in (page, plain)]
        assert tags[0].count(f"{HTML}script") == tags[1].count(f"{HTML}script")
        assert set(tags[0]) == set(tags[1])
        assert "49" not in "".join(page.words("h1"))
    draw_page(hostile, command=hostile.job.target or "").encode()


def test_page_has_light_dark_and_print_styles(make: Make) -> None:
    text = draw_page(make())
    for part in ("color-scheme: light dark", "@media (prefers-color-scheme: dark)", "@media print"):
        assert part in text


# ------------------------------------------------------------------------------------------------ the fragment
def test_fragment_is_self_contained(make: Make) -> None:
    text = draw_fragment(make())
    assert text.lstrip().startswith('<div class="vramcast">')
    page = Page(framed(text))
    assert not page.all("script")
    assert [one for one in page.root.iter() if isinstance(one.tag, str) and one.get("id")] == []
    (style,) = page.words("style")
    depth, outside = 0, ""
    for letter in re.sub(r"/\*.*?\*/", "", style):
        depth += (letter == "{") - (letter == "}")
        outside += letter if depth == 0 else ""
    assert (outside.strip(" }"), depth) == (".vramcast", 0)  # every rule is inside of the fragment's own
    assert len(text) < 100_000


def test_notebook_output_has_text_without_arrays(make: Make) -> None:
    class Printer:
        said = ""

        def text(self, words: str) -> None:
            self.said += words

    estimate, printer = make(), Printer()
    estimate._repr_pretty_(printer, False)
    assert printer.said == str(estimate)
    assert estimate._repr_html_() == draw_fragment(estimate)


# ------------------------------------------------------------------------------------------------ repetition
@pytest.mark.parametrize(
    ("job", "call"),
    [
        (
            Job(device("t4"), model=b"", batch=TensorSpec((8, 16)), labels=TensorSpec((8,), "int64")),
            "# batch: 8x16 float32\n# labels: 8 int64\nvramcast.estimate(model, batch, labels=labels, device='t4')",
        ),
        (
            Job(device("t4"), target="timm:x", batch=(), training=Training(b"", precision="bf16"), memory_bytes=2**33),
            "# batch: nothing\n# model: timm:x\n"
            "vramcast.estimate(model, batch, optimizer=optimizer, precision='bf16', device='t4', memory=8589934592)",
        ),
        (
            Job(device("t4"), command=Command(("train.py", "--x"), world=World(4)), training=Training(steps=5)),
            "vramcast.estimate_command(['train.py', '--x'], steps=5, world_size=4, device='t4')",
        ),
        (
            Job(device("t4"), command=Command(("pkg.train",), is_module=True)),
            "vramcast.estimate_command(['python', '-m', 'pkg.train'], device='t4')",
        ),
    ],
)
def test_python_call_lists_changed_options(make: Make, job: Job, call: str) -> None:
    assert python_call(replace(make(), job=job)) == call


# ------------------------------------------------------------------------------------------------ files and the command line
def test_estimate_saves_report(make: Make, tmp_path: Path) -> None:
    make().save_report(tmp_path / "job.html")
    assert (tmp_path / "job.html").read_text() == draw_page(make())


@pytest.mark.parametrize("name", ["job.pdf", "job", "job.png"])
def test_rejects_other_extension(make: Make, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"use \.html"):
        save(make(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_names_missing_folder(make: Make, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        make().save_report(tmp_path / "none" / "job.html")


@pytest.mark.parametrize("verb", [["estimate", "x"], ["check", "x"], ["run", "--"]])
def test_rejects_wrong_extension_before_tracing(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb[0], "--report", "job.pdf", *verb[1:]]) == 2
    assert "use .html" in capsys.readouterr().err


def test_page_shows_command_line(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "a job.html"
    options = parser().parse_args(["estimate", "file.py:model", "--report", str(path)])
    options.asked = ("vramcast", "estimate", "file.py:model", "--report", str(path))
    finish(options, make(), Questions(options))
    assert Page(path.read_text()).words("pre") == [shlex.join(options.asked)]


@pytest.mark.usefixtures("auto_tracer")
def test_reports_traced_job(tiny_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.html"
    words = ["check", f"{tiny_models}:wide", "--batch", "64x1024", "--labels", "64x1024", "--on", "t4", "--report", str(path)]
    assert main(words) == 0
    page = Page(path.read_text())
    assert page.words("p")[0].startswith("Fits: at most ")
    assert page.words("pre")[0].startswith("vramcast check ")
