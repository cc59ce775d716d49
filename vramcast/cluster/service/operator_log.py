"""The operator's log on stderr: one line per event, with a traceback below it if the error was unexpected.

Text from clients and their jobs is escaped, so that they cannot forge a line of the log.
"""

from __future__ import annotations

import logging
from typing import Any, Final

LEVELS: Final = ("debug", "info", "warning", "error")
_FORM: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_INDENT: Final = "    "


class _Lines(logging.Formatter):
    """A formatter that writes an event as one line, and a traceback as indented lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of an event."""
        return _escaped(super().formatMessage(record).strip())

    def formatException(self, ei: Any) -> str:
        """Return the lines of a traceback."""
        return "\n".join(_INDENT + _escaped(line) for line in super().formatException(ei).split("\n"))


def write_log(level: str) -> None:
    """Write events of vramcast at this level or above to stderr, and warnings of all other packages."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(_FORM))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("vramcast").setLevel(level.upper())


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
