"""The installed Chromium, for pictures of pages and for the tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from vramcast.core.errors import UsageError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


def installed() -> str | None:
    """Return the path of a Chromium; None without one."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Open a Chromium without a window.

    Raises:
        UsageError: no Chromium is installed.
    """
    from playwright.sync_api import sync_playwright

    path = installed()
    if path is None:
        raise UsageError(f"None of {', '.join(_NAMES)} is installed: apt-get install chromium.")
    with sync_playwright() as driver:
        # Chromium does not run as root with its sandbox.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        try:
            yield browser
        finally:
            browser.close()
