"""Text for a reader, whatever is in it: shortened, printable, on one line."""

from __future__ import annotations

from typing import Final

SHOWN: Final = 80  # arbitrary: characters of a wrong value that a message repeats


def shorten(text: str, limit: int = SHOWN) -> str:
    """Return `text`; of one longer than `limit` characters the beginning and the end, and how many are left out."""
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 3, limit // 3
    return f"{text[:head]} [... {len(text) - head - tail:,} characters cut ...] {text[len(text) - tail :]}"


def shown(value: object) -> str:
    """Return a wrong value for a message, never longer than it is worth."""
    return shorten(repr(value))


def one_line(text: str, limit: int, between: str = " ") -> str:
    """Return the words of `text` without line breaks and control characters, shortened.

    Args:
        text: A job's own message, for example; it may hold anything.
        limit: Characters from which it is shortened.
        between: Stands where a line ended.
    """
    lines = ("".join(c if c.isprintable() else " " for c in line).split() for line in text.splitlines())
    return shorten(between.join(" ".join(words) for words in lines if words), limit)


def printable(name: str, limit: int = 100) -> str:
    """Return a name with a mark for each character that is not printable; of a long one the last `limit` characters."""
    end = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name[-limit - 1 :])
    return end if len(end) <= limit else "…" + end[1 - limit :]


def encodable(text: str) -> str:
    """Return `text` without the lone surrogates that JSON can smuggle in and that no file or terminal takes."""
    return text.encode(errors="replace").decode()
