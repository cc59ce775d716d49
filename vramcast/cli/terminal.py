"""Terminal features: colors, the width, and progress.

Colors appear on a terminal only, unless FORCE_COLOR is set, and never with --no-color, NO_COLOR (no-color.org) or a dumb TERM.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Final, Literal, TextIO, TypeAlias

from vramcast.cli.streams import say
from vramcast.core.progress import Event, Listener, heard_by

Colour: TypeAlias = Literal["green", "yellow", "red", "dim"]
# spec: ECMA-48, Select Graphic Rendition
_CODES: Final[dict[str, str]] = {"green": "32", "yellow": "33", "red": "31", "dim": "2"}
_TICK_S: Final = 1.0  # arbitrary; at most two seconds, so that people see that it works
_LOG_TICK_S: Final = 10.0  # arbitrary: a line each time, in a log that people read later
_QUIET_S: Final = 1.0  # arbitrary: after this, a command's unfinished line gets company
mode: Literal["line", "json", "quiet"] = "line"  # how progress is reported; quiet: not at all, nor a command's output (main.py)
is_plain = False  # whether there are no colors (main.py)
_WIPE: Final = "\r\x1b[K"  # spec: ECMA-48, Erase in Line
_WIDTH: Final = 100  # spec: columns of an answer without a terminal


def has_colours(stream: TextIO | None) -> bool:
    """Return whether text written on a stream may be colored."""
    if stream is None or is_plain or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: Colour, stream: TextIO | None) -> str:
    """Return a text in a color, if the stream may have one."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if text and has_colours(stream) else text


def is_interactive() -> bool:
    """Return whether a person can be asked: both stdin and stdout are terminals."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def width_of(stream: TextIO) -> int:
    """Return the columns of a terminal, or those of an answer if the stream is none."""
    return shutil.get_terminal_size((_WIDTH, 24)).columns if stream.isatty() else _WIDTH


def wrapped(text: str, stream: TextIO | None) -> str:
    """Return a text wrapped at words to the columns of a terminal; unchanged if the stream is none."""
    if stream is None or not stream.isatty():
        return text
    return "\n".join(textwrap.wrap(text, width_of(stream), break_long_words=False, break_on_hyphens=False))


class _Shown(Listener):
    """Reports on stderr: one line of a terminal, drawn again and again, or lines of a log. A command's output comes between."""

    def __init__(self, text: str) -> None:
        self._event = self._whole = Event(text)
        self._began = self._said_at = time.perf_counter()
        self._is_drawn = self._is_within_line = False  # the command's own line has no end yet, like a bar of tqdm
        self._has_said = False  # whether the command has written anything
        self._lock = threading.RLock()  # a signal handler may write too
        self._is_log = mode == "line" and not sys.stderr.isatty()
        self.tick_s = _LOG_TICK_S if self._is_log else _TICK_S
        self._report(self._whole)

    def _report(self, event: Event) -> None:
        with self._lock:
            self._event = event
            if not self._is_log:  # it shows the latest one at each tick
                self.draw()

    def hear(self, event: Event) -> None:
        """Show a report."""
        self._report(event if event.part is not None else replace(event, part=self._whole))

    def output(self, said: bytes) -> None:
        """Write a command's output in place of the line."""
        if mode == "quiet":
            return
        with self._lock:
            self.wipe()
            super().output(said)
            self._is_within_line, self._said_at = not said.endswith(b"\n"), time.perf_counter()
            self._has_said = True

    def count(self, done: int, total: int) -> None:
        """Show how many parts of the work are done."""
        self._whole = replace(self._whole, done=done, total=total)
        self._report(self._whole)

    def draw(self) -> None:
        """Show the latest report."""
        with self._lock:
            now = time.perf_counter()
            if mode == "quiet" or (self._is_within_line and now - self._said_at < _QUIET_S):
                return
            seconds = now - self._began
            start = "\n" if self._is_within_line else ""
            self._is_within_line = False
            if mode == "json":
                say(start + json.dumps({"progress": asdict(self._event), "seconds": round(seconds, 2)}))
                return
            text, columns = f"{self._event} ... {seconds:.0f} s", shutil.get_terminal_size().columns
            if self._is_log:
                say(f"{start}vramcast: {text}")
                return
            # The end of a long line is kept: the stage.
            say(start + _WIPE + (text if len(text) < columns else f"...{text[len(text) - max(columns - 4, 0) :]}"), end="")
            self._is_drawn = True

    def set_apart(self) -> None:
        """Write an empty line between the command's output and what follows."""
        if self._has_said:
            super().output(b"\n" * (1 + self._is_within_line))

    def wipe(self) -> None:
        """Erase the line."""
        if self._is_drawn:
            say(_WIPE, end="")
            self._is_drawn = False


@contextmanager
def progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr what is being done, from `text` to the last stage, and for how long; erase the line at the end.

    Without a terminal, a line every 10 s shows it. Only commands may write on the terminal meanwhile.

    Yields:
        A function for work in many parts, which takes the number of finished ones and of all.
    """
    if sys.stderr is None:
        yield lambda done, total: None
        return
    shown, done = _Shown(text), threading.Event()

    def tick() -> None:
        while not done.wait(shown.tick_s):
            shown.draw()

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        with heard_by(shown):
            yield shown.count
    finally:
        done.set()
        ticking.join()
        shown.wipe()
    shown.set_apart()
