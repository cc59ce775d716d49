"""An explanation as data, as JSON, and as at most seven lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from vramcast.core.text import one_line
from vramcast.core.units import gib
from vramcast.explanations.causes import FullCard

_WIDTH: Final = 100  # spec: vramcast/report/answer.py, as the next
_NAME: Final = 9
_SHOWN: Final = 4  # arbitrary: parts of a line; JSON has all


class ProvedChange(NamedTuple):
    """A change that would have let the job live; its proof (replayed, traced, numbers of the text); its peaks in bytes."""

    change: str
    proof: str
    peaks: dict[str, int]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job ran out of memory: one of `causes.CAUSES` or None, whether the input proves it, and the fact that decides.

    `holders` are (category or line, name, bytes), `changes` the cheapest first, `unknown` what the input cannot say.
    """

    cause: str | None
    is_certain: bool
    reason: str
    card: FullCard
    where: str = ""
    holders: tuple[tuple[str, str, int], ...] = ()
    changes: tuple[ProvedChange, ...] = ()
    ranks: int = 1
    unknown: str = ""

    @property
    def exit_code(self) -> int:
        """Exit code of `vramcast explain`: 0 for a certain cause, otherwise 4."""
        return 0 if self.cause and self.is_certain else 4

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        said = {name: getattr(self, name) or None for name in ("cause", "where", "unknown")}
        said |= {name: getattr(self, name) for name in ("is_certain", "reason", "ranks")}
        card = {name: value for name, value in asdict(self.card).items() if name.endswith("_bytes")}
        changes = [{"change": one.change, "proof": one.proof, "peaks": one.peaks} for one in self.changes]
        holders = [{"kind": kind, "name": name, "bytes": size} for kind, name, size in self.holders]
        return {"schema": 1, **said, "card": card, "holders": holders, "changes": changes}

    def __str__(self) -> str:
        sure = "" if self.is_certain else "probably "
        head = f"out of memory: {sure}{self.cause}: {self.reason}" if self.cause else f"no cause found: {self.reason}"
        lines = [head, *(f"{name:<{_NAME}}{one_line(words, 1000)}" for name, words in self._rows() if words)]
        return "\n".join(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in lines)

    def _rows(self) -> Iterator[tuple[str, str]]:
        card = self.card
        of = f" of {gib(card.total_bytes)}" if card.total_bytes is not None else ""
        free = f", with {gib(card.free_bytes)}{of} free" if of or card.free_bytes else ""
        asked = f"{gib(card.request_bytes)}{free}" if card.request_bytes else ""
        ranks = f"{self.ranks} ranks failed" if self.ranks > 1 else ""
        yield "asked", "; ".join(filter(None, (asked, self.where and f"at {self.where}", ranks)))
        for title, wanted in (("holds", "category"), ("lines", "line")):
            yield title, ", ".join([f"{name} {gib(size)}" for kind, name, size in self.holders if kind == wanted][:_SHOWN])
        for title, one in zip(("try", "or"), self.changes, strict=False):
            yield title, f"{one.change} ({', '.join([one.proof, *(f'{key} {gib(size)}' for key, size in one.peaks.items())])})"
        yield "unknown", self.unknown
