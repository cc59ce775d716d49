"""Conversion of frozen dataclasses to JSON values, and back with every value checked against the fields' types.

All external values are read here. The module needs only the standard library, because submit hosts and measuring nodes have no
packages.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
import types
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from vramcast.core.errors import DatasetError, VramcastError
from vramcast.core.text import encodable, shown

T = TypeVar("T")
_MAX_TEXT = 100_000  # arbitrary: longer text in one field is damage or an attack
_MAX_INT = 2**63  # spec: range of a Parquet int64
_MAX_FLOAT: Final = sys.float_info.max
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_EXPECTED: Final = {
    bool: "true or false", str: f"text of at most {_MAX_TEXT} characters", list: "a list", dict: "an object",
    int: "a whole number below 2^63", float: "a finite number",
}  # fmt: skip


class Between(NamedTuple):
    """The range of a number: `Annotated[int, Between(1, 64)]`."""

    least: float
    most: float


class _Wrong(ValueError):
    """A value does not match its field's type; `kind` is the message without the value."""

    kind = ""


def to_plain(value: Any) -> Any:
    """Return `value` (dataclasses, tuples, dicts, scalars) as values for `json.dumps`."""
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
    """Return the field names of a dataclass; none for any other type."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def json_value(text: str | bytes, what: str, *, raises: type[VramcastError] = DatasetError) -> Any:
    """Parse JSON; a number in it may still be infinite: 1e400.

    Args:
        text: Untrusted text.
        what: Beginning of the message, such as a file's name.
        raises: Error class for text that is not JSON, is nested too deeply, or names NaN or infinity.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise raises(f"{what} is nested too deeply.") from None
    except ValueError as error:
        raise raises(f"{what} is not JSON ({str(error)[:100]}).") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def from_plain(kind: type[T], value: Any, where: str = "", *, raises: type[VramcastError] = DatasetError) -> T:
    """Return `value` as a `kind`; absent fields have their defaults.

    Args:
        kind: A dataclass, or another type, built from str, int, float, bool, None, Path, Any, Literal, list, dict,
            tuple[X, ...], tuple of fixed length, Mapping[K, X], dataclasses, unions of these, and numbers annotated with
            `Between`.
        value: A result of `to_plain`, or any untrusted value.
        where: Position in the file, for the message.
        raises: Error class for an unknown or missing field, or a wrong type; the message names the field.
    """
    where = where or kind.__name__
    try:
        return _reader(kind)(value, where)  # type: ignore[no-any-return,arg-type]
    except _Wrong as error:
        refusal = raises(str(error))
        if isinstance(refusal, DatasetError):
            refusal.kind = error.kind or str(error)
        raise refusal from None
    except RecursionError:
        raise raises(f"{where} is nested too deeply.") from None


# Histories have 10^5 rows: each type is analyzed once, and its values are then checked by a function of their own.
_Reader: TypeAlias = Callable[[Any, str], Any]


@cache
def _reader(kind: Any) -> _Reader:
    """Return a function that checks and converts a value of this type."""
    if dataclasses.is_dataclass(kind):
        return _record(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Annotated:
        return partial(_between, _reader(arguments[0]), arguments[1])
    if origin is Literal:
        return partial(_one_of, arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin in (dict, Mapping):
        return partial(_mapping, _reader(arguments[0]), _reader(arguments[1]))
    if kind is Any:
        return lambda value, where: value
    if kind is Path:
        return lambda value, where: Path(_scalar(str, value, where))
    return partial(_scalar, kind)


def _record(kind: Any) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    fields = {
        field.name: (hints[field.name], field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
        for field in dataclasses.fields(kind)
    }
    needed = tuple(name for name, (_, is_needed) in fields.items() if is_needed)
    readers: dict[str, _Reader] = {}

    def read(value: Any, where: str) -> Any:
        if not readers:  # deferred, because a type may contain itself
            readers.update({name: _reader(hint) for name, (hint, _) in fields.items()})
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        if unknown := [str(name) for name in value if name not in fields]:
            close = difflib.get_close_matches(unknown[0][:40], fields, n=1)
            meant = f"did you mean '{close[0]}'" if close else "was it written by a newer vramcast"
            raise _Wrong(f"{where} has the field '{encodable(unknown[0][:40])}', which is unknown: {meant}?")
        if missing := [name for name in needed if name not in value]:
            raise _Wrong(f"{where} has no '{missing[0]}': it is incomplete.")
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
            except ValueError:
                continue
        return last(value, where)

    return read


def _between(reader: _Reader, ends: Between, value: Any, where: str) -> Any:
    number = reader(value, where)
    if not ends.least <= number <= ends.most:
        raise _wrong(where, value, f"a number from {ends.least:g} to {ends.most:g}")
    return number


def _one_of(known: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in known or isinstance(value, bool) not in {isinstance(one, bool) for one in known}:
        raise _wrong(where, value, f"one of {', '.join(map(str, known))}")
    return value


def _mapping(key_reader: _Reader, reader: _Reader, value: Any, where: str) -> Any:
    return {
        key_reader(key, f"{where}'s key"): reader(item, f"{where}[{encodable(str(key)[:40])!r}]")
        for key, item in _scalar(dict, value, where).items()
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
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_FLOAT:
        return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_INT:
        return value
    if kind is str and isinstance(value, str) and len(value) <= _MAX_TEXT and encodable(value) == value:
        return value
    if kind in (bool, list, dict) and isinstance(value, kind):
        return value
    raise _wrong(where, value, _EXPECTED[kind])


def _wrong(where: str, value: Any, wanted: str) -> _Wrong:
    wrong = _Wrong(f"{where} is {shown(value)}: {wanted} is expected.")
    wrong.kind = f"{where} is not {wanted}"
    return wrong
