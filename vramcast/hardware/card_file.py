"""The parser of TOML files with cards and their measured contexts: cards.toml, or a site's own.

    [[card]]                                         [[context]]
    key = "a16"                                      gpu = "rtx4090"
    name = "NVIDIA A16"                              torch = "2.11.0+cu130"
    total_bytes = 15_655_829_504                     driver = "580.126.09"
    compute_capability = "8.6"                       libraries = ["cublas", "cudnn"]
    sm_count = 10 ...                                size_mib = 478.0

A card with `like = "rtx3090"` inherits missing fields from that card: its key, or its name, and `memory = "12GiB"` are enough
then. A file is data: nothing in it is run, and all of it is checked before any of it is used.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from vramcast.core.checks import number, whole
from vramcast.core.errors import UsageError
from vramcast.core.text import shorten, shown
from vramcast.core.units import parse_bytes
from vramcast.hardware.device import LIMITS, SMALLEST_BYTES, Device, PeakSpeeds, squeezed

T = TypeVar("T")
_MOST_TEXT: Final = 100  # arbitrary: characters of a name or a version
_MOST_MIB: Final = 2**16  # arbitrary: 64 GiB, a hundred times any context
_MOST_TFLOPS: Final = 10**6  # arbitrary: hundreds of times any card's
_MOST_CUDA: Final = 99  # arbitrary: major versions grow by one in two years
_KNOWN_LIBRARIES: Final = ("cublas", "cudnn")
_PEAK: Final = "peak_tflops"
# Numbers of a card with their accepted ranges. arbitrary: far beyond any card
_CARD_NUMBERS: Final[Mapping[str, tuple[int, int]]] = {
    "total_bytes": (SMALLEST_BYTES, 2**42),
    "sm_count": (1, 4096),
    "clock_khz": (1, 10**8),
    "memory_clock_khz": (1, 10**9),
    "memory_bus_bits": (1, 2**20),
    "l2_bytes": (0, 2**31),
}
# Numbers that follow from the compute capability if missing.
_CARD_LIMITS: Final[Mapping[str, tuple[int, int]]] = {
    "shared_per_sm_bytes": (1, 2**24),
    "shared_per_block_optin_bytes": (1, 2**24),
    "reserved_shared_per_block_bytes": (0, 2**20),
    "threads_per_sm": (32, 2**16),
    "blocks_per_sm": (1, 2**12),
}
_OWN: Final = {"key", "aliases", "assumed"}  # fields that no card inherits


@dataclass(frozen=True, slots=True)
class Interval:
    """A size with its low and high end, in MiB."""

    mib: float
    low_mib: float
    high_mib: float

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.mib + other.mib, self.low_mib + other.low_mib, self.high_mib + other.high_mib)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.mib - other.mib, self.low_mib - other.high_mib, self.high_mib - other.low_mib)

    def times(self, factor: float) -> Interval:
        """Return the interval times a factor."""
        return Interval(self.mib * factor, self.low_mib * factor, self.high_mib * factor)


@dataclass(frozen=True, slots=True, eq=False)
class ContextRow:
    """A measured context.

    Attributes:
        gpus: The cards for which it holds: keys, or torch's names.
        libraries: Which of cuBLAS and cuDNN had run; empty for a bare context, before the first kernel.
        size: Memory of the process outside PyTorch's segments; without given ends, they equal the point.
        source: Source of the measurement.
        torch: Versions, or minor releases, known to have this context.
        driver: Version of the driver; "" if unknown.
        cuda: The only major version of CUDA for which it holds; 0: all versions that load kernels at first use.
        seen: The printed sizes, or those in messages, in MiB.
    """

    gpus: tuple[str, ...]
    libraries: frozenset[str]
    size: Interval
    source: str
    torch: tuple[str, ...] = ()
    driver: str = ""
    cuda: int = 0
    seen: tuple[float, ...] = ()

    @property
    def identity(self) -> tuple[tuple[str, ...], tuple[str, ...], str, int, frozenset[str]]:
        """Key of the context; a new measurement replaces the one with the same key."""
        return self.gpus, self.torch, self.driver, self.cuda, self.libraries


@dataclass(frozen=True, slots=True)
class CardFile:
    """A parsed file.

    Attributes:
        path: Its path.
        cards: Cards by key, in the file's order.
        contexts: Contexts in the file's order.
        sha256: Hash of its bytes.
        tables: Fields of each card by key, including inherited ones.
        names: Keys by squeezed name of the card.
    """

    path: Path
    cards: Mapping[str, Device]
    contexts: tuple[ContextRow, ...]
    sha256: str
    tables: Mapping[str, Mapping[str, Any]]
    names: Mapping[str, str]


def parsed(data: bytes, path: Path, known: Mapping[str, Mapping[str, Any]]) -> CardFile:
    """Parse a file.

    Args:
        data: Its bytes.
        path: Its path, for messages.
        known: Tables of cards from which its own may inherit.
    Raises:
        UsageError: A field is wrong; the message names file and field.
    """
    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{path}' is not TOML: {shorten(str(error), _MOST_TEXT)}.") from None
    cards: dict[str, Device] = {}
    own: dict[str, Mapping[str, Any]] = {}
    like = ChainMap(own, dict(known))
    names: dict[str, str] = {}
    contexts = []
    wrong: list[str] = []
    for kind, rows in tables.items():
        if kind not in ("context", "card") or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UsageError(f"'{path}' has '{shorten(kind, _MOST_TEXT)}': only [[context]] and [[card]] are known.")
        for i, row in enumerate(rows):
            place = f"'{path}', [[{kind}]] {i + 1}"
            try:
                if kind == "context":
                    contexts.append(_context(_Fields(place, row), str(path)))
                    continue
                table, errors = _completed(row, like)
                card = _card(_Fields(place, table, errors))
            except UsageError as error:
                wrong.append(str(error))
                continue
            if card.key in cards:
                raise UsageError(f"{place}: key '{card.key}' occurs twice: choose another one.")
            cards[card.key], own[card.key] = card, table
            for name in (card.key, *card.aliases, row.get("name", card.key)):  # an inherited name stays that of the other card
                names.setdefault(squeezed(name), card.key)
    if wrong:
        raise UsageError("\n".join(wrong))
    return CardFile(path, cards, tuple(contexts), hashlib.sha256(data).hexdigest(), own, names)


class _Absent(Exception):
    """A required field is missing, which `_Fields.require` has noted."""


class _Fields:
    """The fields of a table; wrong ones are noted, and `end` raises for all of them."""

    def __init__(self, place: str, row: Mapping[str, Any], wrong: Iterable[str] = ()) -> None:
        self.place = place
        self.wrong = list(wrong)
        self._row = dict(row)
        self._absent: set[str] = set()

    def noted(self, read: Callable[[], T], instead: T) -> T:
        """Return what `read` returns; if it raises, note the error and return `instead`."""
        try:
            return read()
        except UsageError as error:
            self.wrong.append(str(error))
        except _Absent:
            pass
        return instead

    def take(self, name: str, default: Any = None) -> Any:
        """Return a field's value; a field without a default is required."""
        if name in self._absent:
            raise _Absent
        if name not in self._row and default is None:
            raise UsageError(f"the field {name} is missing.")
        return self._row.pop(name, default)

    def require(self, *names: str) -> None:
        """Note the fields that are missing."""
        if missing := [name for name in names if name not in self._row]:
            self._absent |= set(missing)
            self.wrong.append(
                f"the field {', '.join(missing)} is missing: add it, or inherit from a related card of vramcast devices: "
                'like = "rtx3090".'
            )

    def several(self, name: str, default: Any = None) -> list[Any]:
        """Return the values of a list, or a single value as a list."""
        value = self.take(name, default)
        return value if isinstance(value, list) else [value]

    def text(self, name: str, default: str | None = None, pattern: str = r"[ -~]+", what: str = "printable text") -> str:
        """Return a text; the default is not checked."""

        def read() -> str:
            value = self.take(name, default)
            return value if value == default and default is not None else _matching(name, value, pattern, what)

        return self.noted(read, "")

    def texts(
        self, name: str, default: list[str] | None = None, pattern: str = r"[ -~]+", what: str = "printable text"
    ) -> tuple[str, ...]:
        """Return one text or several."""
        return self.noted(lambda: tuple(_matching(name, one, pattern, what) for one in self.several(name, default)), ())

    def some(self, name: str, known: tuple[str, ...], advice: str = "", default: list[str] | None = None) -> tuple[str, ...]:
        """Return some of the known names."""

        def read() -> tuple[str, ...]:
            value = self.take(name, default)
            if not isinstance(value, list) or not all(one in known for one in value):
                names = f"{', '.join(map(repr, known[:-1]))} and {known[-1]!r}"
                raise UsageError(f"{name} is {shown(value)}: a list of {names} is expected{advice}.")
            return tuple(value)

        return self.noted(read, ())

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """Return a whole number."""
        return self.noted(lambda: whole(name, self.take(name, default), least=least, most=most), least)

    def number(self, name: str, most: float, default: float | None = None) -> float:
        """Return a non-negative number."""
        return self.noted(lambda: number(name, self.take(name, default), least=0, most=most), 0.0)

    def end(self) -> None:
        """Raise for all wrong fields, and for those that were not taken."""
        unknown = [f"the field {shown(name)} is unknown." for name in self._row]
        if self.wrong or unknown:
            raise UsageError(f"{self.place}: {' '.join(self.wrong + unknown)}")


def _matching(name: str, value: Any, pattern: str, what: str) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT or not re.fullmatch(pattern, value):
        raise UsageError(f"{name} is {shown(value)}: {what} of at most {_MOST_TEXT} characters is expected.")
    return value


# ------------------------------------------------------------------------------------------------ contexts
def _context(fields: _Fields, file: str) -> ContextRow:
    size = fields.number("size_mib", _MOST_MIB)
    interval = Interval(size, fields.number("low_mib", _MOST_MIB, size), fields.number("high_mib", _MOST_MIB, size))
    found = ContextRow(
        gpus=fields.texts("gpu"),
        libraries=frozenset(fields.some("libraries", _KNOWN_LIBRARIES, ", [] for a bare context")),
        size=interval,
        source=fields.text("source", file),
        torch=fields.texts("torch", [], pattern=r"\d+\.\d+[\w.+-]*", what="a version such as 2.11.0"),
        driver=fields.text("driver", ""),
        cuda=fields.whole("cuda", 0, _MOST_CUDA, 0),
        seen=fields.noted(lambda: tuple(number("seen_mib", one) for one in fields.several("seen_mib", [])), ()),
    )
    if not fields.wrong and not 0 < interval.low_mib <= size <= interval.high_mib:
        fields.wrong.append(
            f"size_mib is {size:g} between low_mib {interval.low_mib:g} and high_mib {interval.high_mib:g}: "
            "positive numbers in ascending order are expected."
        )
    fields.end()
    return found


# ------------------------------------------------------------------------------------------------ cards
def _completed(row: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> tuple[Mapping[str, Any], list[str]]:
    """Return the fields of a card, with missing ones from the card that it is like; and errors."""
    said = {name: value for name, value in row.items() if name not in ("like", "memory")}
    wrong = []
    if "memory" in row:
        try:
            said["total_bytes"] = _memory_bytes(row)
        except UsageError as error:
            wrong.append(str(error))
            said["total_bytes"] = SMALLEST_BYTES
    if "like" not in row:
        return said, wrong
    like = row["like"]
    if not isinstance(like, str) or like not in known:
        wrong.append(
            f"like is {shown(like)}: the key of a card above this one, or in the list of `vramcast devices`, is expected."
        )
        like = next(iter(known), None)  # any card: its fields are not missing
    if "key" not in said and isinstance(said.get("name"), str):
        said["key"] = squeezed(said["name"])
    inherited = known.get(like, {})
    copied = {name: value for name, value in inherited.items() if name not in _OWN}
    assumed = [name for name in inherited.get("assumed", []) if name not in said]
    own = said.get("assumed", [])
    if "compute_capability" in said:  # its dependent numbers are not inherited then
        copied = {name: value for name, value in copied.items() if name not in _CARD_LIMITS}
    return {**copied, **said, "assumed": [*assumed, *own] if isinstance(own, list) else own}, wrong


def _memory_bytes(row: Mapping[str, Any]) -> int:
    memory = row["memory"]
    if "total_bytes" in row or not isinstance(memory, str):
        raise UsageError(f'memory is {shown(memory)}: a size such as "12GiB" is expected, and no total_bytes.')
    return parse_bytes(memory)


def _card(fields: _Fields) -> Device:
    fields.require("key", "name", "compute_capability", *_CARD_NUMBERS)
    key = fields.text("key", pattern=r"[a-z0-9][a-z0-9._-]*", what="a name of lower-case letters, digits and -")
    name = fields.text("name", pattern=r"[ -:<>-~]+", what="printable text without ; and =")
    capability = fields.noted(lambda: _capability(fields), next(iter(LIMITS)))
    limits = LIMITS.get(capability)
    if limits is None:
        fields.require(*_CARD_LIMITS)
    numbers = {field: fields.whole(field, least, most) for field, (least, most) in _CARD_NUMBERS.items()}
    for field, (least, most) in _CARD_LIMITS.items():
        numbers[field] = fields.whole(field, least, most, None if limits is None else getattr(limits, field))
    aliases = fields.texts("aliases", [])
    assumed = fields.some("assumed", (*_CARD_NUMBERS, *_CARD_LIMITS, _PEAK), default=[])
    peak = fields.noted(lambda: _peak(fields, assumed=_PEAK in assumed), None)
    if not fields.wrong and numbers["shared_per_block_optin_bytes"] > numbers["shared_per_sm_bytes"]:
        fields.wrong.append("shared_per_block_optin_bytes is more than shared_per_sm_bytes, which a block shares.")
    fields.end()
    of_device = tuple(field for field in assumed if field != _PEAK)
    return Device(
        key=key, name=name, compute_capability=capability, assumed=of_device, aliases=aliases, peak=peak, **numbers
    )  # fmt: skip


def _capability(fields: _Fields) -> tuple[int, int]:
    said = fields.take("compute_capability")
    version = re.fullmatch(r"(\d{1,2})\.(\d)", str(said)) if isinstance(said, str | float) else None
    if version is None:
        raise UsageError(f'compute_capability is {shown(said)}: a version such as "9.0" is expected.')
    return int(version[1]), int(version[2])


def _peak(fields: _Fields, *, assumed: bool) -> PeakSpeeds | None:
    said = fields.take(_PEAK, {})
    if not isinstance(said, dict):
        raise UsageError(f"{_PEAK} is {shown(said)}: a table {{ fp32 = 1, tf32 = 1, half = 1 }} is expected.")
    if not said:
        return None
    of_unit = _Fields(_PEAK, said)
    fp32, tf32, half = (of_unit.number(unit, _MOST_TFLOPS) for unit in ("fp32", "tf32", "half"))
    of_unit.end()
    return PeakSpeeds(fp32, tf32, half, assumed)
