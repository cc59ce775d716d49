"""What a site says of its own machines: a TOML file of contexts which it measured, and of cards which vramcast does not know.

    [[context]]                                      [[card]]
    gpu = "rtx4090"                                  key = "a40"
    torch = "2.11.0+cu130"                           name = "NVIDIA A40"
    driver = "580.126.09"                            total_bytes = 47_676_129_280
    libraries = ["cublas", "cudnn"]                  compute_capability = "8.6"
    size_mib = 478.0                                 sm_count = 84 ...

`VRAMCAST_SITE` names it; `vramcast doctor --measure-context` writes its contexts. A file with one card may also stand in place
of a device's name (`--device my-card.toml`). It is data: nothing in it is run, and all is looked at before any is used.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.core.checks import number, whole
from vramcast.core.errors import UsageError
from vramcast.core.files import atomic_write
from vramcast.core.text import shorten, shown
from vramcast.hardware.devices import LIMITS, SMALLEST_BYTES, Device

VARIABLE: Final = "VRAMCAST_SITE"
ENDING: Final = ".toml"
_MOST_FILE_BYTES = 2**20  # arbitrary: thousands of rows
_MOST_TEXT = 100  # arbitrary: characters of a name or a version
_MOST_MIB = 2**16  # arbitrary: 64 GiB, no context is a hundredth of it
_KNOWN_LIBRARIES: Final = ("cublas", "cudnn")
# The numbers of a card with the least and most which are believed. arbitrary: far beyond any card
_CARD_NUMBERS: Final[Mapping[str, tuple[int, int]]] = {
    "total_bytes": (SMALLEST_BYTES, 2**42),
    "sm_count": (1, 4096),
    "clock_khz": (1, 10**8),
    "memory_clock_khz": (1, 10**9),
    "memory_bus_bits": (1, 2**20),
    "l2_bytes": (0, 2**31),
}
# Those which follow from the compute capability where they are not said.
_CARD_LIMITS: Final[Mapping[str, tuple[int, int]]] = {
    "shared_per_sm_bytes": (1, 2**24),
    "shared_per_block_optin_bytes": (1, 2**24),
    "reserved_shared_per_block_bytes": (0, 2**20),
    "threads_per_sm": (32, 2**16),
    "blocks_per_sm": (1, 2**12),
}


@dataclass(frozen=True, slots=True)
class SiteContext:
    """A context which the site measured.

    Attributes:
        gpu: The card: a key, or the name which torch prints.
        torch, driver: Versions; the driver may be "".
        libraries: Which of cuBLAS and cuDNN had run; none: a bare context, before the first kernel.
        size_mib, low_mib, high_mib: What the process took beside PyTorch's segments; ends as the point where none is given.
        file: Which says so.
    """

    gpu: str
    torch: str
    driver: str
    libraries: frozenset[str]
    size_mib: float
    low_mib: float
    high_mib: float
    file: str

    @property
    def identity(self) -> tuple[str, str, str, frozenset[str]]:
        """What a new measurement of the same replaces."""
        return self.gpu, self.torch, self.driver, self.libraries


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A site file, looked through.

    Attributes:
        path: Where it is.
        contexts: In its order.
        cards: By key.
        sha256: Of its bytes.
    """

    path: Path
    contexts: tuple[SiteContext, ...]
    cards: Mapping[str, Device]
    sha256: str


# ------------------------------------------------------------------------------------------------ what is in force
def current() -> SiteFile | None:
    """Return the file which $VRAMCAST_SITE names; None: it is not set.

    Raises:
        UsageError: it cannot be read, or something in it is wrong; the message names file and field.
    """
    path = os.environ.get(VARIABLE)
    return read(path) if path else None


def read(path: str | os.PathLike[str]) -> SiteFile:
    """Return a site file; kept in memory until it changes.

    Raises:
        UsageError: see `current`.
    """
    file = Path(path)
    try:
        status = file.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"The site file '{shorten(str(path), _MOST_TEXT)}' cannot be read: {reason}.") from None
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_FILE_BYTES:
        raise UsageError(f"The site file '{path}' is no file of at most {_MOST_FILE_BYTES} bytes: give a TOML file.")
    return _read(file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _read(path: Path, changed_ns: int, size_bytes: int) -> SiteFile:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"The site file '{path}' cannot be read: {error.strerror}.") from None
    return _parsed(data, path)


def card_of(path: str) -> Device:
    """Return the one card of a file.

    Raises:
        UsageError: see `current`; also where it has none, several, or contexts.
    """
    found = read(path)
    if len(found.cards) != 1 or found.contexts:
        raise UsageError(
            f"'{path}' has {len(found.cards)} cards and {len(found.contexts)} contexts: as a device give a file with one "
            f"[[card]] alone; the site's own file is named by {VARIABLE}."
        )
    return next(iter(found.cards.values()))


# ------------------------------------------------------------------------------------------------ reading
def _parsed(data: bytes, path: Path) -> SiteFile:
    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{path}' is not TOML: {shorten(str(error), _MOST_TEXT)}.") from None
    contexts, cards = [], {}
    for kind, rows in tables.items():
        if kind not in ("context", "card") or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UsageError(f"'{path}' has '{shorten(kind, _MOST_TEXT)}': only [[context]] and [[card]] are known.")
        for i, row in enumerate(rows):
            fields = _Fields(f"'{path}', [[{kind}]] {i + 1}", row)
            if kind == "context":
                contexts.append(_context(fields, str(path)))
            else:
                card = _card(fields)
                if card.key in cards:
                    raise UsageError(f"{fields.place}: key '{card.key}' comes twice: choose another one.")
                cards[card.key] = card
    return SiteFile(path, tuple(contexts), cards, hashlib.sha256(data).hexdigest())


class _Fields:
    """The fields of one row, each asked for by name."""

    def __init__(self, place: str, row: Mapping[str, Any]) -> None:
        self.place = place
        self._row = dict(row)

    def take(self, name: str, default: Any = None) -> Any:
        """Return a field's value; one without a default must be there."""
        if name not in self._row and default is None:
            raise UsageError(f"{self.place}: the field {name} is missing.")
        return self._row.pop(name, default)

    def text(self, name: str, default: str | None = None, pattern: str = r"[ -~]+", what: str = "printable text") -> str:
        value = self.take(name, default)
        if not isinstance(value, str) or len(value) > _MOST_TEXT or (value != default and not re.fullmatch(pattern, value)):
            raise UsageError(f"{self.place}: {name} is {shown(value)}: {what} of at most {_MOST_TEXT} characters is expected.")
        return value

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int:
        return whole(f"{self.place}: {name}", self.take(name, default), least=least, most=most)

    def mib(self, name: str, default: float | None = None) -> float:
        return number(f"{self.place}: {name}", self.take(name, default), least=0, most=_MOST_MIB)

    def end(self) -> None:
        """Refuse what was not asked for."""
        if self._row:
            raise UsageError(f"{self.place}: the field {shown(next(iter(self._row)))} is not known.")


def _context(fields: _Fields, file: str) -> SiteContext:
    libraries = fields.take("libraries")
    if not isinstance(libraries, list) or not all(name in _KNOWN_LIBRARIES for name in libraries):
        raise UsageError(
            f"{fields.place}: libraries is {shown(libraries)}: a list of {' and '.join(map(repr, _KNOWN_LIBRARIES))} "
            "is expected, [] for a bare context."
        )
    size = fields.mib("size_mib")
    found = SiteContext(
        gpu=fields.text("gpu"),
        torch=fields.text("torch", pattern=r"\d+\.\d+[\w.+-]*", what="a version such as 2.11.0"),
        driver=fields.text("driver", ""),
        libraries=frozenset(libraries),
        size_mib=size,
        low_mib=fields.mib("low_mib", size),
        high_mib=fields.mib("high_mib", size),
        file=file,
    )
    if not 0 < found.low_mib <= size <= found.high_mib:
        raise UsageError(
            f"{fields.place}: size_mib is {size:g} between low_mib {found.low_mib:g} and high_mib {found.high_mib:g}: "
            "positive numbers in ascending order are expected."
        )
    fields.end()
    return found


def _card(fields: _Fields) -> Device:
    key = fields.text("key", pattern=r"[a-z0-9][a-z0-9._-]*", what="a name of small letters, digits and -")
    name = fields.text("name", pattern=r"[ -:<>-~]+", what="printable text without ; and =")
    said = fields.take("compute_capability")
    version = re.fullmatch(r"(\d{1,2})\.(\d)", str(said)) if isinstance(said, str | float) else None
    if version is None:
        raise UsageError(f'{fields.place}: compute_capability is {shown(said)}: a version such as "9.0" is expected.')
    capability = int(version[1]), int(version[2])
    limits = LIMITS.get(capability)
    numbers = {field: fields.whole(field, least, most) for field, (least, most) in _CARD_NUMBERS.items()}
    for field, (least, most) in _CARD_LIMITS.items():
        numbers[field] = fields.whole(field, least, most, None if limits is None else getattr(limits, field))
    fields.end()
    if numbers["shared_per_block_optin_bytes"] > numbers["shared_per_sm_bytes"]:
        raise UsageError(
            f"{fields.place}: shared_per_block_optin_bytes is more than shared_per_sm_bytes: a block has at most all of it."
        )
    return Device(key=key, name=name, compute_capability=capability, assumed=(), **numbers)


# ------------------------------------------------------------------------------------------------ writing
def block(kind: str, row: Mapping[str, str | float | list[str]]) -> str:
    """Return one row as TOML: [[kind]], then a field a line."""
    # spec: a JSON string without escaped slashes is a basic string of TOML, and a list of them an array
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in row.items()]
    return "\n".join([f"[[{kind}]]", *lines, ""])


def context_block(row: SiteContext) -> str:
    """Return a context as TOML."""
    ends = {} if row.low_mib == row.high_mib else {"low_mib": row.low_mib, "high_mib": row.high_mib}
    return block(
        "context",
        {
            "gpu": row.gpu, "torch": row.torch, "driver": row.driver, "libraries": sorted(row.libraries),
            "size_mib": row.size_mib, **ends,
        },
    )  # fmt: skip


def write_contexts(path: str | os.PathLike[str], rows: list[SiteContext]) -> None:
    """Put contexts into a site file, in place of those of the same card, software and libraries; all else stays as it is.

    The file appears whole or not at all.

    Raises:
        UsageError: the file which is there is no site file.
        OutputError: it cannot be written.
    """
    file = Path(path)
    before = read(file).contexts if file.exists() else ()
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    new = {row.identity for row in rows}
    parts = re.split(r"^(?=[ \t]*\[\[)", text, flags=re.MULTILINE)
    kept = [_comments(part) if _identity(part) in new else part for part in parts]
    whole_text = "\n".join(part.strip("\n") + "\n" for part in ["".join(kept), *map(context_block, rows)] if part.strip())
    data = whole_text.encode()
    after = {row.identity for row in _parsed(data, file).contexts}
    if after != new | {row.identity for row in before}:
        raise UsageError(
            f"'{path}' is written in a way which cannot be changed by program: put these lines into it.\n{whole_text}"
        )
    with atomic_write(file) as out:
        out.write(data)


def _identity(part: str) -> tuple[str, str, str, frozenset[str]] | None:
    """Return whose context a part of a file is."""
    try:
        contexts = _parsed(part.encode(), Path("part")).contexts
    except UsageError:
        return None
    return contexts[0].identity if len(contexts) == 1 else None


def _comments(part: str) -> str:
    """Return the comments at the end of a part which goes: they belong to what follows."""
    lines = part.splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#"))
    return "".join(lines[last + 1 :])
