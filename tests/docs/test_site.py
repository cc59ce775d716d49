"""The built site in Chromium: its search finds the right page first, axe-core finds nothing, and a keyboard reaches everything.

It needs Chromium (Debian: apt-get install chromium) and the packages that build the site, and skips without them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sphinx_copybutton", reason="sphinx-copybutton is not installed: pip install --group docs")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install --group release")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

pytestmark = pytest.mark.release
ROOT = Path(__file__).parents[2]
PAGES = (
    "index",
    "start",
    "guides/hugging-face",
    "guides/out-of-memory",
    "slurm",
    "reference/exit-codes",
    "reference/python",
    "search",
)
# What people type, and the page that answers.
QUERIES = {
    "install": "start",
    "pip install": "start",
    "lora": "guides/hugging-face",
    "qlora": "guides/hugging-face",
    "hugging face": "guides/hugging-face",
    "huggingface": "guides/hugging-face",
    "trainer": "guides/hugging-face",
    "peft": "guides/hugging-face",
    "trl": "guides/hugging-face",
    "wandb": "guides/faq",
    "faq": "guides/faq",
    "windows": "guides/faq",
    "vllm": "guides/vllm",
    "torch.compile": "guides/faq",
    "mixed precision": "guides/faq",
    "gradient accumulation": "guides/faq",
    "gradient checkpointing": "guides/faq",
    "nvidia-smi": "guides/faq",
    "uncertain": "guides/faq",
    "rtx 3080": "guides/which-card",
    "rtx 4090": "guides/which-card",
    "which gpu": "guides/which-card",
    "batch size": "guides/which-card",
    "largest batch": "guides/which-card",
    "out of memory": "guides/out-of-memory",
    "oom": "guides/out-of-memory",
    "cuda out of memory": "guides/out-of-memory",
    "snapshot": "guides/out-of-memory",
    "does not fit": "guides/does-not-fit",
    "diffusers": "guides/diffusers",
    "stable diffusion": "guides/diffusers",
    "lightning": "guides/lightning",
    "yolo": "guides/ultralytics",
    "ultralytics": "guides/ultralytics",
    "deepspeed": "guides/many-gpus",
    "fsdp": "guides/many-gpus",
    "multi gpu": "guides/many-gpus",
    "torchrun": "guides/many-gpus",
    "slurm": "slurm",
    "kubernetes": "kubernetes",
    "ray": "ray-dask",
    "ci": "ci-gate",
    "github actions": "ci-gate",
    "accuracy": "accuracy",
    "exit code": "reference/exit-codes",
    "environment variables": "reference/environment",
    "json": "reference/json",
    "python api": "reference/python",
    "glossary": "glossary",
    "sacct": "histories",
}


_TAKES_FOCUS = "e => e.checkVisibility({visibilityProperty: true}) && e.tabIndex >= 0"
_FOCUS_IS_SEEN = """() => {
    const found = document.activeElement, box = found.getBoundingClientRect();
    return found === document.body || getComputedStyle(found).opacity === "1" && box.right > 0 && box.bottom > 0
        && box.left < innerWidth && box.top < innerHeight;
}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the site, serve it on this machine, and yield its address."""
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "sphinx", "-q", "-d", folder / "doctrees", ROOT / "docs", folder / "html")
    subprocess.run(command, check=True, timeout=300)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder / "html"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def opened(browser: Any, address: str, *, width: int = 1000, scheme: str = "light") -> Any:
    """Return a page of the site."""
    page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
    page.goto(address, wait_until="load")
    return page


def first_hit(page: Any, site: str, query: str) -> str:
    """Type a query into the search of a page, and return the name of the first page found."""
    page.goto(f"{site}/index.html")
    page.locator("input.sidebar-search").fill(query)
    page.keyboard.press("Enter")
    hit = page.locator("#search-results ul.search li a").first
    hit.wait_for(timeout=20_000)
    return str(hit.get_attribute("href")).partition("#")[0].partition("?")[0].removesuffix(".html")


def test_search_finds_right_page_first(browser: Any, site: str) -> None:
    page = opened(browser, f"{site}/index.html", width=1600)
    found = {query: first_hit(page, site, query) for query in QUERIES}
    assert found == QUERIES


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("name", PAGES)
def test_page_is_responsive_and_accessible(browser: Any, site: str, name: str, width: int, scheme: str) -> None:
    page = opened(browser, f"{site}/{name}.html", width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    violations = axe.Axe().run(page).response["violations"]
    assert [
        f"{one['id']}: {node['html'][:200]}"
        for one in violations
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ] == []


@pytest.mark.parametrize("width", [400, 1600])
def test_keyboard_reaches_every_control(browser: Any, site: str, width: int) -> None:
    """Press Tab through a page: each link, button and field gets the focus once, and is then to be seen."""
    page = opened(browser, f"{site}/guides/hugging-face.html", width=width)
    wanted = page.evaluate(f"[...document.querySelectorAll('a[href], button, input')].filter({_TAKES_FOCUS}).length")
    seen = set()
    while (at := page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)")) not in seen:
        seen.add(at)
        page.wait_for_function(_FOCUS_IS_SEEN, timeout=2_000)
        page.keyboard.press("Tab")
    assert len(seen) >= wanted > 20


def test_keyboard_finds_a_page(browser: Any, site: str) -> None:
    """Go from the home page to an answer by the search alone, on the screen of a telephone."""
    page = opened(browser, f"{site}/index.html", width=400)
    while not page.evaluate("document.activeElement.matches('input.sidebar-search')"):
        page.keyboard.press("Tab")
    page.keyboard.type("lora")
    page.keyboard.press("Enter")
    page.locator("#search-results ul.search li a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/guides/hugging-face.html*")
