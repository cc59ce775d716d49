"""Pictures of the page of `vramcast serve`, from a real service: asking, waiting, answered, the largest batch, an error."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.serving.running import HOST, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAME: Final = "page"  # of the picture in the documentation
WIDTHS: Final = (400, 1000, 1600)
SCHEMES: Final = ("light", "dark")
_JOB: Final = "/?target=gpt2&device=rtx4060&batch_size=4&seq=512&optimizer=adamw"
_ADDRESSES: Final = {
    "asking": "/",
    "answered": _JOB,
    "does-not-fit": "/?target=torchvision%3Avgg16&device=t4&batch_size=256",
    "largest": f"{_JOB}&largest=on",
    "error": "/?target=resnet51&device=t4&task=lora",
    "waiting": "/?target=Qwen%2FQwen2.5-0.5B&device=rtx4090&batch_size={new}",
}
_WAIT_MS: Final = 300_000.0  # arbitrary: a search traces some ten jobs


def make(browser: Browser, folder: Path) -> bytes:
    """Write a picture of each state, width and colour scheme to `folder`; return the one for the documentation as PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, running(Path(data)) as service:
        base = f"http://{HOST}:{service.port}"
        for number, (width, scheme) in enumerate(((width, scheme) for width in WIDTHS for scheme in SCHEMES), 1):
            with closing(browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)) as context:
                for state, address in _ADDRESSES.items():
                    png = _shot(context, base + address.format(new=number), is_waiting=state == "waiting")
                    (folder / f"{NAME}-{state}-{width}-{scheme}.png").write_bytes(png)
        with closing(browser.new_context(viewport={"width": 1000, "height": 1070})) as context:
            return _shot(context, base + _JOB, is_whole=False)


def _shot(context: Any, address: str, *, is_waiting: bool = False, is_whole: bool = True) -> bytes:
    page = context.new_page()
    page.goto(address, wait_until="commit" if is_waiting else "load", timeout=_WAIT_MS)
    if is_waiting:
        page.wait_for_selector(".seconds")
    png: bytes = page.screenshot(full_page=is_whole)
    page.close()
    return png
