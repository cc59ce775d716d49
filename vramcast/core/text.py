"""Arbitrary text made fit for output: shortened, printable, on one line."""

from __future__ import annotations

from typing import Final

SHOWN: Final = 80  # arbitrary: characters of a wrong value in a message


def shorten(text: str, limit: int = SHOWN) -> str:
    """Return `text`, with the middle replaced by a character count if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 3, limit // 3
    return f"{text[:head]} [... {len(text) - head - tail:,} characters cut ...] {text[len(text) - tail :]}"


def shown(value: object) -> str:
    """Return a wrong value for a message, shortened."""
    return shorten(repr(value))


def one_line(text: str, limit: int, between: str = " ") -> str:
    """Return the words of `text` without line breaks and control characters, shortened.

    Args:
        text: Any text, such as a job's own message.
        limit: Maximal number of characters.
        between: Replacement for line ends.
    """
    lines = ("".join(c if c.isprintable() else " " for c in line).split() for line in text.splitlines())
    return shorten(between.join(" ".join(words) for words in lines if words), limit)


def printable(name: str, limit: int = 100) -> str:
    """Return the last `limit` characters of a name, with a mark for each unprintable character."""
    end = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name[-limit - 1 :])
    return end if len(end) <= limit else "…" + end[1 - limit :]


def encodable(text: str) -> str:
    """Return `text` without lone surrogates, which JSON can contain but no file or terminal accepts."""
    return text.encode(errors="replace").decode()
