"""The page and the fragment in Chromium: no error, no request to the network, no overflow, no finding of axe-core.

It needs Chromium (Debian: apt-get install chromium), and skips without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vramcast.estimates.advice_rows import Advice, Row
from vramcast.estimates.result import Estimate
from vramcast.report import draw_fragment, draw_page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

pytestmark = pytest.mark.integration
Make = Callable[..., Estimate]
Open = Callable[..., Any]
WIDTHS_PX = (400, 1000, 1600)
MIB = 2**20
SCROLLING = (
    "[...document.querySelectorAll('main *')].filter("
    "e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === 'auto')"
)


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Yield a function that opens a page's text; fail at the end if the browser logged anything or requested another file."""
    said: list[str] = []
    contexts = []

    def open_(text: str, *, width: int = 1000, scheme: str = "light") -> Any:
        path = tmp_path / "page.html"
        path.write_text(text)
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: request.url == path.as_uri() or said.append(f"asked for {request.url}"))
        page.goto(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert said == []


def full(make: Make) -> str:
    """Return a page with all its tables and a long word in each."""
    estimate = make(1100, names=("a_long_name." * 20, "layers.1.down", "aten::" + "x" * 200), warnings=("w" * 300,))
    rows = (
        Row("half the batch", "twice the launches; " * 8, 300 * MIB, 700 * MIB, True, {"t4": True}),
        Row("x", "", reason="y" * 90),
    )
    return draw_page(estimate, advice=Advice(rows, 0.99), command="vramcast estimate " + "x" * 400)


def cell(make: Make) -> str:
    """Return a fragment inside a notebook's page, which has its own rules for tables."""
    rules = ".out td, .out th { text-align: right; color: gray } .out tr:nth-child(odd) { background: silver }"
    around = (
        f"<h1>Notebook</h1><style>{rules}</style><p id='beside'>beside</p><div class='out'>{draw_fragment(make(1100))}</div>"
    )
    return f"<!DOCTYPE html><html lang='en'><head><title>Notebook</title></head><body><main>{around}</main></body></html>"


def findings(page: Any) -> list[str]:
    """Return the findings of axe-core that are serious or critical."""
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found if one["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS_PX)
@pytest.mark.parametrize("draw", [full, cell])
def test_page_is_responsive_and_accessible(
    make: Make, opened: Open, draw: Callable[[Make], str], width: int, scheme: str
) -> None:
    page = opened(draw(make), width=width, scheme=scheme)
    over_px = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert over_px == 0
    assert findings(page) == []


def test_axe_detects_faults(opened: Open) -> None:
    page = opened("<!DOCTYPE html><html><body><p style='color:#ddd;background:#fff'>pale</p></body></html>")
    assert {one.partition(":")[0] for one in findings(page)} >= {"color-contrast", "html-has-lang"}


def test_arrow_keys_move_along_timeline(make: Make, opened: Open) -> None:
    page = opened(draw_page(make()))
    page.focus("#chart")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert "live 300.0 MiB" in page.inner_text("#said")


def test_keyboard_reaches_scrolling_frames(make: Make, opened: Open) -> None:
    page = opened(full(make), width=400)
    found = page.evaluate(f"{SCROLLING}.map(e => e.tabIndex >= 0 || e.querySelector('[tabindex]') !== null)")
    assert found
    assert all(found)


def test_hostile_text_runs_nothing(hostile: Estimate, opened: Open) -> None:
    for text in (draw_page(hostile, command=hostile.title), draw_fragment(hostile)):
        page = opened(text)
        page.on("dialog", lambda dialog: pytest.fail(f"a dialog says {dialog.message}"))
        assert page.evaluate("document.querySelectorAll('script').length") == (2 if "<!DOCTYPE" in text else 0)


def test_printed_page_is_light_and_complete(make: Make, opened: Open) -> None:
    page = opened(full(make), width=700, scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(f"{SCROLLING}.length") == 0
    assert page.pdf().startswith(b"%PDF")


def test_fragment_does_not_restyle_notebook(make: Make, opened: Open) -> None:
    text = cell(make)
    page = opened(text)
    looks = "getComputedStyle(document.querySelector('#beside'))"
    style = f"['color', 'font', 'margin', 'background'].map(name => {looks}[name]).join()"
    with_fragment = page.evaluate(style)
    page.evaluate("document.querySelector('.vramcast').remove()")
    assert page.evaluate(style) == with_fragment
