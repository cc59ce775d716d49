"""Frozen dataclasses as plain JSON values, and back with every value checked against the fields' types.

Written here because the collector runs where only torch, numpy and the standard library are.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from vramcast.core.errors import DatasetError

T = TypeVar("T")
_MAX_TEXT = 100_000  # arbitrary: longer text in one field is damage or an attack
_MAX_INT = 2**63  # spec: what a Parquet int64 holds
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def to_plain(value: Any) -> Any:
    """Return `value` (dataclasses, tuples, dicts, scalars) as what `json.dumps` takes."""
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    if names := _names(kind):
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


@cache
def _names(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass; none of any other type."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def from_plain(kind: type[T], value: Any, where: str = "") -> T:
    """Return `value` as a `kind`; absent fields take their defaults.

    Args:
        kind: A dataclass with fields of str, int, float, bool, Literal, None, tuple[X, ...], tuple of fixed length,
            dict[str, X], dataclasses and unions of these.
        value: What `to_plain` gave, or anything untrusted.
        where: The place in the file, for the message.
    Raises:
        DatasetError: a field is unknown, missing, or of another type; the message names the field.
    """
    return _reader(kind)(value, where or kind.__name__)  # type: ignore[no-any-return,arg-type]


# Histories have 10^5 rows: what a type asks for is found once, and each value is then looked at by a function of its own.
_Reader: TypeAlias = Callable[[Any, str], Any]


@cache
def _reader(kind: Any) -> _Reader:
    """Return what reads a value of this type, or raises."""
    if dataclasses.is_dataclass(kind):
        return _record(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return partial(_one_of, arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin is dict:
        return partial(_mapping, arguments[1])
    return partial(_scalar, kind)


def _record(kind: Any) -> _Reader:
    hints = get_type_hints(kind)
    fields = {
        field.name: (hints[field.name], field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
        for field in dataclasses.fields(kind)
    }
    needed = tuple(name for name, (_, is_needed) in fields.items() if is_needed)
    readers: dict[str, _Reader] = {}

    def read(value: Any, where: str) -> Any:
        if not readers:  # not before: a type may hold itself
            readers.update({name: _reader(hint) for name, (hint, _) in fields.items()})
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        if unknown := [str(name) for name in value if name not in fields]:
            raise DatasetError(
                f"{where} has a field '{printable(unknown[0][:40])}' which is unknown: was it written by a newer vramcast?"
            )
        if missing := [name for name in needed if name not in value]:
            raise DatasetError(f"{where} has no '{missing[0]}': the row is incomplete.")
        return kind(**{name: readers[name](item, f"{where}.{name}") for name, item in value.items()})

    return read


def _union(kinds: tuple[Any, ...]) -> _Reader:
    takes_none = type(None) in kinds
    *others, last = (_reader(kind) for kind in kinds if kind is not type(None))

    def read(value: Any, where: str) -> Any:
        if value is None and takes_none:
            return None
        for reader in others:
            try:
                return reader(value, where)
            except DatasetError:
                continue
        return last(value, where)

    return read


def _one_of(known: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in known or isinstance(value, bool) not in {isinstance(one, bool) for one in known}:
        raise _wrong(where, value, f"one of {', '.join(map(str, known))}")
    return value


def _mapping(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _wrong(where, value, "an object")
    reader = _reader(kind)
    return {
        _scalar(str, key, f"{where}'s key"): reader(item, f"{where}[{printable(key[:40])!r}]") for key, item in value.items()
    }


def _tuple(kinds: tuple[Any, ...]) -> _Reader:
    repeated = _reader(kinds[0]) if len(kinds) == 2 and kinds[1] is Ellipsis else None
    readers = () if repeated is not None else tuple(_reader(kind) for kind in kinds)

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _wrong(where, value, "a list")
        if repeated is not None:
            return tuple(repeated(item, f"{where}[{i}]") for i, item in enumerate(value))
        if len(value) != len(readers):
            raise _wrong(where, value, f"a list of {len(readers)}")
        return tuple(reader(item, f"{where}[{i}]") for i, (reader, item) in enumerate(zip(readers, value, strict=True)))

    return read


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        raise _wrong(where, value, "a finite number")
    if kind is int:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_INT:
            return value
        raise _wrong(where, value, "a whole number below 2^63")
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str) and len(value) <= _MAX_TEXT and printable(value) == value:
        return value
    raise _wrong(where, value, {bool: "true or false", str: f"text of at most {_MAX_TEXT} characters"}[kind])


def printable(text: str) -> str:
    """Return `text` without the lone surrogates which JSON can smuggle in, and no file or terminal takes."""
    return text.encode(errors="replace").decode()


def _wrong(where: str, value: Any, wanted: str) -> DatasetError:
    return DatasetError(f"{where} is {printable(str(value)[:60])!r}: {wanted} is expected.")
