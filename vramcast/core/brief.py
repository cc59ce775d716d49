"""One-line representations of data classes, for a terminal, a debugger and a log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, Final, TypeVar

LIMIT: Final = 120  # arbitrary: characters of a line
_PART: Final = 45  # arbitrary: characters of one field
Class = TypeVar("Class", bound=type)


def brief(kind: Class) -> Class:
    """Give a data class a representation of one line: the fields that differ from their defaults, as many as fit.

    Example:
        >>> from dataclasses import dataclass
        >>> @brief
        ... @dataclass
        ... class Picture:
        ...     name: str
        ...     content: bytes
        ...     pages: int = 1
        >>> Picture("cat.png", bytes(5000))
        Picture(name='cat.png', content=<5,000 bytes>)
    """
    kind.__repr__ = lambda self: _of_fields(self, LIMIT)  # type: ignore[method-assign, misc, assignment]
    return kind


def every_field(value: Any) -> str:
    """Return a data class with all its fields and parts, for keys of caches: the short line is the same for different jobs.

    Example:
        >>> from vramcast.jobs.job import Command
        >>> every_field(Command(("train.py", "--epochs", "3", "--lr", "0.1")))
        "Command(words=('train.py', '--epochs', '3', '--lr', '0.1',), is_module=False, ...
    """
    if is_dataclass(value) and not isinstance(value, type):
        shown = (f"{one.name}={every_field(getattr(value, one.name))}" for one in fields(value) if one.repr)
        return f"{type(value).__name__}({', '.join(shown)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {every_field(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{every_field(one)}, " for one in value).rstrip() + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(every_field, value)) + "]"
    return repr(value)


def _of_fields(value: Any, limit: int) -> str:
    text, end = f"{type(value).__name__}(", ", ...)"
    shown = [f"{one.name}={_part(getattr(value, one.name, None))}" for one in _differing(value)]
    for place, part in enumerate(shown):
        is_last = place + 1 == len(shown)
        longer = text + (", " if place else "") + part
        if len(longer) + (1 if is_last else len(end)) > limit:
            return text + (end if place else "...)")
        text = longer
    return text + ")"


def _differing(value: Any) -> Iterator[Field[Any]]:
    for one in fields(value):
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        now = getattr(value, one.name, None)
        if one.repr and not (now is default or (type(now) is type(default) and _is_plain(now) and now == default)):
            yield one


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | tuple | frozenset | dict)


def _part(value: Any) -> str:
    """Return one field: its own representation if that is short, or else its kind and size."""
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    if isinstance(value, str):
        return repr(value) if len(value) < _PART else repr(value[: _PART - 6] + "...")
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"<{value.dtype} of {'x'.join(map(str, value.shape)) or 'one value'}>"
    if is_dataclass(value):
        return _of_fields(value, _PART)
    if isinstance(value, tuple | list | set | frozenset | dict) and len(value) > 3:
        return f"<{len(value):,} items>"
    text = repr(value)
    if len(text) < _PART and "\n" not in text:
        return text
    return f"<{len(value):,} items>" if hasattr(value, "__len__") else f"<{type(value).__name__}>"
