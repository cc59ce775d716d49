"""The operator's log on stderr: one line per event, and a traceback below it where the error was unexpected.

What clients and their jobs wrote is escaped, so that nobody can write a line that looks like one of ours.
"""

from __future__ import annotations

import logging
from typing import Any, Final

LEVELS: Final = ("debug", "info", "warning", "error")
_FORM: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_INDENT: Final = "    "


class _Lines(logging.Formatter):
    """Writes an event as one line, and a traceback as indented ones."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of an event."""
        return _escaped(super().formatMessage(record).strip())

    def formatException(self, ei: Any) -> str:
        """Return the lines of a traceback."""
        return "\n".join(_INDENT + _escaped(line) for line in super().formatException(ei).split("\n"))


def write_log(level: str) -> None:
    """Write events of vramcast from this level on to stderr, and warnings of all others."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(_FORM))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("vramcast").setLevel(level.upper())


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
