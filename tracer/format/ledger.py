"""The ledger: a tracer's account of the calls which it could not fully answer, as data.

An entry has a kind, which says what was done, and a code, which says what is missing; the words for a reader are made from
both in one place. The C code takes its words from `csrc/ledger.h`, which `python -m vramcast.tracer.format.ledger` writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import TraceFileError


class Entered(StrEnum):
    """What was done with a call. The words stand in trace files, and the null GPU's report."""

    NOOP = "noop"  # reviewed, did nothing
    REFUSED = "refused"  # failed loudly
    ASSUMED = "assumed"  # answered with an assumption
    BOUNDED = "bounded"  # answered with 0, where `size_bytes` is the sum of the most that was possible each time
    READ = "read"  # the host read zeros
    DRAWN = "drawn"  # the host read a number drawn at random
    # Something large was drawn, or was too much to work out, on which depends ...
    LARGEST = "largest"  # a shape, which has a largest: a run of the job with that gives a ceiling
    BRANCH = "branch"  # a yes or no: a run of the job with the other answer gives another peak
    OPEN = "open"  # something which has no largest: no bound covers it
    # A number that the host read, and nobody knows, ...
    SMALLEST = "smallest"  # decides something, or may: a run with the smallest and one with the largest show what
    DECIDED = "decided"  # decides a yes or no: a run with the other answer shows what
    UNFOLLOWED = "unfollowed"  # went where nobody sees it: runs with others show whether it decides a size
    OUTSIDE = "outside"  # memory of the card given past PyTorch's allocator: at most `size_bytes` at once, by whom `name` says
    MANAGED = "managed"  # managed memory, which a card takes from the host and gives back: at most `size_bytes` at once
    COMMUNICATOR = "communicator"  # a call on one of NCCL's communicators, `nccl_calls` reads its name
    CONTEXT = "context"  # the process made its context on the device whose number `name` is
    SPEED = "speed"  # whether something has happened: the speed of the card decides it
    WORKSPACE = "workspace"  # a size that a library was handed as workspace
    LAUNCHES = "launches"


class Code(StrEnum):
    """What is missing. Its value is what a reader is told; `{}` stands for the entry's name. Values stand in trace files."""

    CALL = "{}"  # an entry point of NVIDIA's, by its name, or an operator whose inside is not known
    NO_ORACLE = "cuDNN plan without an oracle's answer, workspace: 0"
    NO_WORKSPACES = "convolution workspaces: 0 ({})"
    OTHER_CUDNN = "convolution workspaces of another cuDNN version"
    CUBLASLT_WORKSPACE = "cuBLASLt's workspace inside a cuDNN plan: 0"
    WITHHELD_ENGINES = "cuDNN engines left out for want of a device or of NVRTC"
    CHANNELS_LAST_NORM = "cuDNN batch normalisation (channels last) workspace: 0"
    ABSENT = "{} of ranks which are not traced, taken for those of one which is"
    DRAWN_SHAPE = "values drawn for {}"
    UNBOUNDED = "no largest shape for {}"


# Entries of the C code whose words it shares with Python; every other one is a CALL.
_FIXED: Final = {code.value: code for code in Code if "{}" not in code.value}
# spec: NVIDIA's naming: an entry point begins with its library
_LIBRARIES: Final = {"cublas": ("cublas",), "cudnn": ("cudnn", "cuDNN"), "nccl": ("nccl", "NCCL")}
_HEADER: Final = Path(__file__).parents[1] / "nullgpu" / "csrc" / "ledger.h"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: what was entered, how often, and a sum of bytes where the kind has one."""

    kind: Entered
    name: str
    hits: int
    size_bytes: int = 0
    code: Code = Code.CALL

    @classmethod
    def of(cls, kind: Entered, code: Code, hits: int, size_bytes: int = 0, *, name: str = "") -> Entry:
        """Return the entry of something which has a code of its own."""
        return cls(kind, name, hits, size_bytes, code)

    @classmethod
    def reported(cls, line: str) -> Entry:
        """Return the entry of a line of the null GPU's report: kind, words, hits, bytes."""
        kind, words, hits, size_bytes = line.split("\t")
        one = cls.counted(words, int(hits))
        return replace(one, kind=Entered(kind), size_bytes=int(size_bytes))

    @classmethod
    def counted(cls, what: str, hits: int) -> Entry:
        """Return the assumption behind something which was counted under its code's words, or under its own name."""
        code = _FIXED.get(what, Code.CALL)
        return cls(Entered.ASSUMED, what if code is Code.CALL else "", hits, 0, code)

    @property
    def words(self) -> str:
        """What a reader is told."""
        return self.code.value.replace("{}", self.name)

    @property
    def is_unknown(self) -> bool:
        """Whether it widens the bound."""
        return self.kind in (Entered.REFUSED, Entered.ASSUMED)

    @property
    def library(self) -> str:
        """Which library it shows to be loaded: cublas, cudnn, nccl, or "" another."""
        if self.kind not in (Entered.NOOP, Entered.ASSUMED):
            return ""
        return next((library for library, begins in _LIBRARIES.items() if self.words.startswith(begins)), "")

    def to_row(self) -> list[Any]:
        """Return it as a row of a trace file."""
        return [self.kind.value, self.code.value, self.name, self.hits, self.size_bytes]

    @classmethod
    def of_row(cls, row: Any) -> Entry:
        """Return the entry of a row of a trace file, which may hold anything.

        Raises:
            TraceFileError: it is damaged.
        """
        kind, code, name, hits, size_bytes = row
        if not isinstance(name, str) or not all(isinstance(n, int) and 0 <= n < 2**63 for n in (hits, size_bytes)):
            raise TraceFileError(f"a row of the ledger is {str(row)[:100]}, expected kind, code, name, hits and bytes")
        return cls(Entered(kind), name, hits, size_bytes, Code(code))


def words(entries: Iterable[Entry], *kinds: Entered) -> tuple[str, ...]:
    """Return what a reader is told of the entries of these kinds, sorted."""
    return tuple(sorted(entry.words for entry in entries if entry.kind in kinds))


def header() -> str:
    """Return the text of `csrc/ledger.h`."""
    lines = [f'#define NG_{code.name} "{text}"' for text, code in _FIXED.items()]
    about = "/* Words of the ledger which the C code shares with tracer/format/ledger.py, which writes this file. */"
    return "\n".join([about, "#ifndef NULLGPU_LEDGER_H", "#define NULLGPU_LEDGER_H", *lines, "#endif", ""])


if __name__ == "__main__":
    _HEADER.write_text(header())
