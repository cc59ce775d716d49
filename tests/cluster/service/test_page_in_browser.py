"""The page of the service in Chromium: its states, widths and colours, axe-core, and the keyboard alone.

It needs Chromium (Debian: apt-get install chromium), and skips without it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
from tests.cluster.service.doubles import Instant, known
from tests.cluster.service.test_page import HOSTILE, JOB, Sized
from tests.report.test_in_browser import SCROLLING, WIDTHS_PX, findings  # after the lines above
from vramcast.cluster.service.access import Rules
from vramcast.cluster.service.app import create_app
from vramcast.cluster.service.clients import Clients
from vramcast.cluster.service.page_form import fields, link
from vramcast.cluster.service.service import Service
from vramcast.cluster.service.store import Store

pytestmark = [pytest.mark.integration, pytest.mark.release]
Open = Callable[..., Any]
# resnet50's worker dies, and resnet18's waits until the gate opens; Sized answers by batch size.
STATES = {
    "asking": {},
    "waiting": JOB,
    "answered": {**JOB, "batch_size": "4"},
    "largest": {**JOB, "largest": "on"},
    "wrong": {**JOB, "target": "resnt18"},
    "failed": {**JOB, "target": "torchvision:resnet50"},
}


class Workers(Sized):
    """Workers whose answer depends on the question: see `STATES`."""

    async def ask(self, values: dict[str, Any], asker: str = "") -> dict[str, Any]:
        if values["batch_size"]:
            return await Sized.ask(self, values, asker)
        return await Instant.ask(self, values, asker)


class Served:
    """A service on a port of its own, in a thread."""

    def __init__(self, folder: Path, *clients: Any) -> None:
        self.workers = Workers()
        self._store = Store(folder)
        service = Service(self._store, self.workers, "v1", weights={})  # type: ignore[arg-type]
        app = create_app(service, [self.workers], Rules(Clients(clients)))  # type: ignore[list-item]
        import uvicorn

        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.base = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._server.serve([self._socket])))
        self._thread.start()

    def gate(self, *, is_open: bool) -> None:
        """Open or close the gate before answers without a batch size."""
        self._loop.call_soon_threadsafe(self.workers.gate.set if is_open else self.workers.gate.clear)

    def close(self) -> None:
        """End the service."""
        self.gate(is_open=True)
        self._server.should_exit = True
        self._thread.join()
        self._loop.close()
        self._store.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with closing(Served(tmp_path)) as found:
        yield found


@pytest.fixture
def opened(browser: Any, served: Served) -> Iterator[Open]:
    """Yield a function that opens an address; fail at the end if a script ran or the browser asked anything else."""
    said: list[str] = []
    contexts = []

    def still(route: Any) -> None:
        response = route.fetch(max_redirects=0)
        route.fulfill(response=response, headers={name: value for name, value in response.headers.items() if name != "refresh"})

    def open_(
        address: dict[str, str], *, width: int = 1000, scheme: str = "light", reloads: bool = False, **options: Any
    ) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, **options)
        if not reloads:  # a page that loads again ends what a test runs in it
            context.route("**/*", still)
        contexts.append(context)
        page = context.new_page()
        page.on("dialog", lambda dialog: said.append(f"a dialog: {dialog.message}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: "Failed to load" in message.text or said.append(message.text))
        page.on("request", lambda request: request.url.startswith(f"{served.base}/") or said.append(request.url))
        page.goto(served.base + link(address), wait_until="commit")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert said == []


def shown(served: Served, opened: Open, state: str, **looks: Any) -> Any:
    """Return a page in a state."""
    served.gate(is_open=state != "waiting")
    page = opened(STATES[state], **looks)
    if state == "waiting":
        page.wait_for_selector(".seconds")
    else:
        page.wait_for_load_state()
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES)
def test_page_is_responsive_and_accessible(served: Served, opened: Open, state: str, scheme: str) -> None:
    page = shown(served, opened, state, scheme=scheme)
    for width in WIDTHS_PX:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        assert findings(page) == []
        frames = page.evaluate(f"{SCROLLING}.map(e => e.tabIndex >= 0 || e.querySelector('[tabindex]') !== null)")
        assert all(frames)


def test_answer_replaces_progress_by_itself(served: Served, opened: Open) -> None:
    page = shown(served, opened, "waiting", reloads=True)
    assert page.locator("progress").is_visible()
    assert page.locator(".seconds:visible").count() == 1
    served.gate(is_open=True)
    page.wait_for_selector(".verdict")
    assert not page.locator("progress").is_visible()
    assert served.workers.asked == ["resnet18"]


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.name || document.activeElement.textContent.trim()"))


def test_keyboard_alone_asks_and_reads(served: Served, opened: Open) -> None:
    page = shown(served, opened, "asking")
    reached = []
    while focused(page) != "Does it fit?":
        page.keyboard.press("Tab")
        reached.append(focused(page))
        page.keyboard.type({"target": "torchvision:resnet18", "device": "A100-PCIE", "batch_size": "4"}.get(reached[-1], ""))
    expected = [one.name for one in fields() if one.name != "rank"]
    assert [name for name in reached if name in expected] == expected
    page.keyboard.press("Enter")
    page.wait_for_selector(".verdict")
    assert page.url == served.base + link({"target": "torchvision:resnet18", "device": "a100-pcie-40gb", "batch_size": "4"})
    reached = []
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.append(focused(page))
    assert {"Find the largest batch", "The address of this answer", "48 larger cards"} <= set(reached)


def test_rank_appears_for_adapters(served: Served, opened: Open) -> None:
    page = shown(served, opened, "asking")
    assert not page.locator("[name=rank]").is_visible()
    page.select_option("[name=task]", "qlora")
    assert page.locator("[name=rank]").is_visible()


def test_summary_unfolds_form_by_keyboard(served: Served, opened: Open) -> None:
    page = shown(served, opened, "answered")
    assert not page.locator("[name=target]").is_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("[name=target]").is_visible()
    assert page.input_value("[name=batch_size]") == "4"


@pytest.mark.parametrize("name", [*(one.name for one in fields()), "largest"])
def test_hostile_address_runs_nothing(served: Served, opened: Open, name: str) -> None:
    page = opened({**JOB, "task": "lora", "cards": "2", name: f"{HOSTILE}<img src=x onerror=alert(1)>"})
    page.wait_for_load_state()
    assert page.evaluate("document.scripts.length + document.images.length") == 0
    assert page.evaluate("[...document.querySelectorAll('*')].every(e => !e.getAttributeNames().some(n => n.startsWith('on')))")


def test_browser_sends_token_as_password(browser: Any, tmp_path: Path) -> None:
    credentials = {"username": "any", "password": "secret"}
    with (
        closing(Served(tmp_path, known("alice"))) as served,
        closing(browser.new_context(http_credentials=credentials)) as context,
    ):
        page = context.new_page()
        page.goto(served.base + link(STATES["answered"]))
        assert "Fits" in page.inner_text(".verdict")
