"""Pictures of the built site, to look at: three pages at three widths, light and dark.

    python -m benchmarks.site.site_pictures [FOLDER]      # `make screenshots`; default: build/pictures

Needs `make docs`, a Chromium, and pip install --group pictures.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from benchmarks.site.browser import chromium
from benchmarks.site.screenshots import ROOT, Picture, shot
from vramcast.core.files import atomic_write

SITE: Final = ROOT / "build" / "docs"
PAGES: Final = {"home": "index", "guide": "guides/hugging-face", "reference": "reference/exit-codes"}
WIDTHS_PX: Final = (400, 1000, 1600)
_HEIGHT_PX: Final = 1400  # arbitrary: what a reader sees first, and one screen more


def make(folder: Path) -> list[Path]:
    """Write the pictures to `folder`; return their paths.

    Raises:
        UsageError: No Chromium is installed.
    """
    written = []
    with chromium() as browser:
        for name, page in PAGES.items():
            for width in WIDTHS_PX:
                for scheme in ("light", "dark"):
                    picture = Picture(f"{name}-{width}-{scheme}", SITE / f"{page}.html", width, _HEIGHT_PX, scheme)
                    written.append(folder / f"{picture.name}.png")
                    with atomic_write(written[-1]) as file:
                        file.write(shot(browser, picture))
    return written


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "pictures"
    target.mkdir(parents=True, exist_ok=True)
    for path in make(target):
        print(path)
