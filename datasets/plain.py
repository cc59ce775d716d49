"""Frozen dataclasses as plain JSON values, and back with every value checked against the fields' types.

Written here because the collector runs where only torch, numpy and the standard library are.
"""

from __future__ import annotations

import dataclasses
import math
import types
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vramcast.errors import DatasetError

T = TypeVar("T")
_MAX_TEXT = 100_000  # arbitrary: longer text in one field is damage or an attack
_MAX_INT = 2**63  # spec: what a Parquet int64 holds


def to_plain(value: Any) -> Any:
    """Return `value` (dataclasses, tuples, dicts, scalars) as what `json.dumps` takes."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


def from_plain(kind: type[T], value: Any, where: str = "") -> T:
    """Return `value` as a `kind`; absent fields take their defaults.

    Args:
        kind: A dataclass with fields of str, int, float, bool, Literal, None, tuple[X, ...], tuple of fixed length,
            dict[str, X], dataclasses and unions of these.
        value: What `to_plain` gave, or anything a stranger wrote.
        where: The place in the file, for the message.
    Raises:
        DatasetError: a field is unknown, missing, or of another type; the message names the field.
    """
    return _of(kind, value, where or kind.__name__)  # type: ignore[no-any-return]


@cache
def _fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """Return of each field its type and whether it must be given."""
    hints = get_type_hints(kind)
    return {
        field.name: (hints[field.name], field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
        for field in dataclasses.fields(kind)
    }


def _of(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(arguments, value, where)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool) not in {isinstance(a, bool) for a in arguments}:
            raise _wrong(where, value, f"one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        return _tuple(arguments, value, where)
    if origin is dict:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise _wrong(where, value, "an object")
        return {
            _of(str, key, f"{where}'s key"): _of(arguments[1], item, f"{where}[{printable(key[:40])!r}]")
            for key, item in value.items()
        }
    return _scalar(kind, value, where)


def _record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    fields = _fields(kind)
    if unknown := [str(name) for name in value if name not in fields]:
        raise DatasetError(
            f"{where} has a field '{printable(unknown[0][:40])}' which is unknown: was it written by a newer vramcast?"
        )
    if missing := [name for name, (_, needed) in fields.items() if needed and name not in value]:
        raise DatasetError(f"{where} has no '{missing[0]}': the row is incomplete.")
    return kind(**{name: _of(fields[name][0], item, f"{where}.{name}") for name, item in value.items()})


def _union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    for kind in kinds[:-1]:
        try:
            return _of(kind, value, where)
        except DatasetError:
            continue
    return _of(kinds[-1], value, where)


def _tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _wrong(where, value, "a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_of(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(value) != len(kinds):
        raise _wrong(where, value, f"a list of {len(kinds)}")
    return tuple(_of(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))


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
