"""Tests of the pictures of the documentation: they are small, they are shown, and the command makes all of them."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.site import screenshots, service_page
from vramcast.core.errors import CannotEstimate

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")

DOCS = Path(__file__).parents[2] / "docs"


def png(pixels: np.ndarray) -> bytes:
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, "png")
        return file.getvalue()


def test_shrinks_picture_without_resizing() -> None:
    smooth = np.linspace(0, 255, 600 * 900 * 3).reshape(600, 900, 3).astype(np.uint8)
    found = screenshots.small(png(smooth))
    assert len(found) <= screenshots.MOST_BYTES
    assert Image.open(io.BytesIO(found)).size == (900, 600)


def test_rejects_picture_that_stays_large() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (540, 540, 3), np.uint8)
    with pytest.raises(CannotEstimate, match="show less of the page"):
        screenshots.small(png(noise))


def test_turns_terminal_colours_into_spans() -> None:
    assert screenshots.coloured("a \x1b[31mb\x1b[0m\x1b[K") == 'a <span style="color:#b3261e">b</span>'


def test_leaves_out_progress_lines() -> None:
    assert screenshots.coloured("a\r\n\r\x1b[Ktracing ...\r\x1b[Ktracing ... 1 s\r\x1b[Kb\r\n") == "a\nb\n"


def test_documents_have_all_pictures_of_command() -> None:
    here = {path.name for path in (DOCS / "pictures").glob("*.png")}
    named = {
        *re.findall(r'Picture\("([\w-]+)"', Path(screenshots.__file__).read_text()),
        *screenshots.TERMINALS,
        service_page.NAME,
    }
    assert here == {f"{name}.png" for name in named}
    pages = "".join((DOCS / name).read_text() for name in ("views.md", "start.md", "serving.md"))
    shown = set(re.findall(r"\]\(pictures/([\w-]+\.png)\)", pages))
    assert shown <= here
    assert shown
    assert all((DOCS / "pictures" / name).stat().st_size <= screenshots.MOST_BYTES for name in here)
