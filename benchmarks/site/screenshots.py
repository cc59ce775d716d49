"""The pictures of the documentation: the report page, a notebook's view of an estimate and of `%%vram`, terminals, the service.

    python -m benchmarks.site.screenshots [FOLDER]      # `make screenshots`; default: docs/pictures

Needs a Chromium, and pip install --group pictures. The estimates are real ones. A picture is at most 150 kB.
"""

from __future__ import annotations

import html
import io
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from benchmarks.site import notebooks, service_page
from benchmarks.site.browser import chromium
from vramcast.cli.main import main as command_line
from vramcast.core.errors import CannotEstimate
from vramcast.core.files import atomic_write

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT: Final = Path(__file__).resolve().parents[2]
MOST_BYTES: Final = 150_000  # arbitrary: for a picture, to keep the repository small
_COLOURS: Final = (256, 128, 64, 32)  # arbitrary: a larger picture gets fewer
_JOB: Final = (
    "estimate", "hf:gpt2", "--batch-size", "4", "--seq", "512", "--optimizer", "adamw", "--on", "rtx4060",
)  # fmt: skip
_CELLS: Final = (
    """import torch, vramcast
from torchvision.models import resnet50

batch, labels = torch.zeros(32, 3, 224, 224), torch.zeros(32, dtype=torch.long)
vramcast.estimate(resnet50(), batch, labels=labels, device="rtx4060")""",
    """%load_ext vramcast""",
    """%%vram --on rtx4060
import torch
model = torch.nn.TransformerEncoderLayer(1024, 16, batch_first=True).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(16, 512, 1024, device="cuda")).mean().backward()
    optimizer.step()""",
)

_TIMELINE: Final = "figure.wide:not(:has(.icicle))"
_CHECK: Final = "vramcast check hf:Qwen/Qwen2.5-0.5B --batch-size 4 --seq 1024 --on rtx4090"
_MISTAKE: Final = "vramcast check resnet81 --on rtx4060"
# The ECMA-48 colours of our terminal output, as a light terminal shows them.
_SPANS: Final = {"31": "#b3261e", "32": "#1b7f3b", "33": "#9a6700", "2": "#8a8f98"}
_TERMINAL: Final = """<!doctype html><meta charset="utf-8"><title>terminal</title>
<style>pre {{ margin: 0; padding: 16px; font: 14px/1.45 'DejaVu Sans Mono', monospace; width: {columns}ch;
white-space: pre-wrap; word-break: break-all; background: #fbfbfa; color: #1f2328 }}</style><pre>{text}</pre>"""


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal with commands typed in it.

    Attributes:
        commands: The commands.
        columns: Its width in characters.
        environment: Variables that the commands see in addition to those of this process.
    """

    commands: tuple[str, ...]
    columns: int = 100
    environment: Mapping[str, str] = field(default_factory=dict)


TERMINALS: Final = {
    "terminal": Terminal((_CHECK, "vramcast estimate torchvision:vgg16 --batch-size 32", _MISTAKE)),
    "terminal-narrow": Terminal((_CHECK, _MISTAKE), columns=60),
    "terminal-plain": Terminal((_CHECK,), environment={"NO_COLOR": "1"}),
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a page.

    Attributes:
        name: Name of its file, without the extension.
        page: The page's file.
        width: Width of the screen, in pixels.
        height: Visible height from the top, in pixels; None for all of it.
        scheme: Colour scheme, light or dark.
        element: CSS selector of the only element to show; "" for the page.
    """

    name: str
    page: Path
    width: int = 1000
    height: int | None = None
    scheme: Literal["light", "dark"] = "light"
    element: str = ""


def make(folder: Path) -> dict[str, int]:
    """Write all pictures to `folder`; return the bytes of each by name.

    Raises:
        UsageError: No Chromium is installed.
        CannotEstimate: A job of the pictures has no estimate.
    """
    written = {}
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        report, notebook = (Path(scratch, f"{name}.html") for name in ("job", "notebook"))
        # The page shows this command: it must not name a temporary folder.
        if command_line([*_JOB, "--report", str(report)]) != 0:
            raise CannotEstimate("The job of the pictures has no estimate: its message is above.")
        report.write_text(report.read_text().replace(str(report), report.name))
        notebook.write_text(executed(_CELLS))
        for picture in (
            Picture("report", report, height=1290),
            Picture("report-dark", report, height=1290, scheme="dark"),
            Picture("report-modules", report, element="figure:has(.icicle)"),
            Picture("timeline", report, element=_TIMELINE),
            Picture("timeline-dark", report, element=_TIMELINE, scheme="dark"),
            Picture("notebook", notebook),
            *(Picture(name, typed(one, Path(scratch, f"{name}.html")), element="pre") for name, one in TERMINALS.items()),
        ):
            written[picture.name] = _write(folder / f"{picture.name}.png", small(shot(browser, picture)))
        page = small(service_page.make(browser, ROOT / "build" / "pictures"))
        written[service_page.NAME] = _write(folder / f"{service_page.NAME}.png", page)
    return written


def _write(path: Path, png: bytes) -> int:
    with atomic_write(path) as file:
        file.write(png)
    return len(png)


def shot(browser: Browser, picture: Picture) -> bytes:
    """Return a picture as PNG, without loading anything from the network."""
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height or 800}, color_scheme=picture.scheme
    )
    try:
        page = context.new_page()
        page.route("http*://**", lambda route: route.abort())
        page.goto(picture.page.as_uri(), wait_until="load")
        if picture.element:
            return page.locator(picture.element).first.screenshot()
        return page.screenshot(full_page=picture.height is None)
    finally:
        context.close()


def small(png: bytes) -> bytes:
    """Return a PNG of at most `MOST_BYTES`, with as many colours as possible.

    Raises:
        CannotEstimate: It is larger with the fewest colours.
    """
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in _COLOURS:
        with io.BytesIO() as file:
            image.quantize(colours, dither=Image.Dither.NONE).save(file, "png", optimize=True)
            if len(file.getvalue()) <= MOST_BYTES:
                return file.getvalue()
    raise CannotEstimate(f"A picture with a palette of {_COLOURS[-1]} exceeds {MOST_BYTES:,} bytes: show less of the page.")


def typed(terminal: Terminal, path: Path) -> Path:
    """Write a page that looks like a terminal after its commands; return its path."""
    import pexpect

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **terminal.environment}
    text = ""
    for command in terminal.commands:
        shown = pexpect.run(
            f"{sys.executable} -m {command}", dimensions=(50, terminal.columns), env=environment, cwd=ROOT, timeout=600
        )
        text += f"<b>$ {html.escape(command)}</b>\n{coloured(html.escape(shown.decode()))}"
    path.write_text(_TERMINAL.format(columns=terminal.columns, text=text), encoding="utf-8")
    return path


def coloured(text: str) -> str:
    """Return escaped text of a terminal without its progress lines, and with spans in place of the colour codes."""

    def span(found: re.Match[str]) -> str:
        return "</span>" if found[1] == "0" else f'<span style="color:{_SPANS[found[1]]}">'

    text = re.sub(r"[^\n]*\r\x1b\[K", "", text.replace("\r\n", "\n"))
    text = re.sub(r"\x1b\[(\d+)m", span, text)
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)


def executed(cells: tuple[str, ...]) -> str:
    """Return a notebook of these cells, run by Jupyter's own kernel, as Jupyter's own page."""
    import nbformat
    from nbconvert import HTMLExporter

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    page, _ = HTMLExporter().from_notebook_node(notebooks.execute(notebook))
    return str(page)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    target.mkdir(parents=True, exist_ok=True)
    for name, size_bytes in make(target).items():
        print(f"{target / name}.png {size_bytes:,} bytes")
