"""The ledger: a tracer's list of calls that it could not fully answer, as data.

An entry has a kind, which records how the call was handled, and a code, which records what is missing; the words for a
reader are made from both in one place. The C code takes its words from `csrc/ledger.h`, which
`python -m vramcast.tracer.format.ledger` writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from vramcast.core.brief import brief
from vramcast.core.errors import TraceFileError


class CallHandling(StrEnum):
    """The handling of a call. These words are part of trace files and of the null GPU's report."""

    NOOP = "noop"  # reviewed: does nothing
    REFUSED = "refused"  # failed loudly
    ASSUMED = "assumed"  # answered with an assumption
    BOUNDED = "bounded"  # answered with 0; `size_bytes` is the sum of the largest possible sizes
    READ = "read"  # the host read zeros
    DRAWN = "drawn"  # the host read a number drawn at random
    # A large tensor was drawn at random, or was too expensive to compute, and decides ...
    LARGEST = "largest"  # a shape with a maximum: a run with the maximum gives a ceiling
    BRANCH = "branch"  # a branch: a run with the other answer gives another peak
    OPEN = "open"  # something without a maximum: no bound covers it
    # The host read an unknown number that ...
    SMALLEST = "smallest"  # decides something, or may: runs with the smallest and the largest value show what
    DECIDED = "decided"  # decides a branch: a run with the other answer shows which
    UNFOLLOWED = "unfollowed"  # was lost from sight: runs with other values show whether it decides a size
    OUTSIDE = "outside"  # card memory from outside PyTorch's allocator: at most `size_bytes` at once, given by `name`
    MANAGED = "managed"  # managed memory, which moves between host and card: at most `size_bytes` at once
    COMMUNICATOR = "communicator"  # a call on an NCCL communicator; `nccl_calls` parses its name
    CONTEXT = "context"  # the process created its context on the device with the number `name`
    SPEED = "speed"  # a query for completion: the speed of the card decides the answer
    WORKSPACE = "workspace"  # a workspace size passed to a library
    LAUNCHES = "launches"


class Code(StrEnum):
    """The missing part, in words for readers; `{}` stands for the entry's name. Values are part of trace files."""

    CALL = "{}"  # an NVIDIA entry point, by its name, or an operator with unknown internals
    NO_ORACLE = "cuDNN plan without an oracle's answer, workspace: 0"
    NO_WORKSPACES = "convolution workspaces: 0 ({})"
    OTHER_CUDNN = "convolution workspaces of another cuDNN version"
    OTHER_CONV3D = "16-bit 3-D convolutions, which the stack's torch leaves to cuDNN"
    CUBLASLT_WORKSPACE = "cuBLASLt's workspace inside a cuDNN plan: 0"
    WITHHELD_ENGINES = "cuDNN engines left out for want of a device or of NVRTC"
    CHANNELS_LAST_NORM = "cuDNN batch normalisation (channels last) workspace: 0"
    ABSENT = "{} of ranks which are not traced, taken for those of one which is"
    DRAWN_SHAPE = "values drawn for {}"
    UNBOUNDED = "no largest shape for {}"


# Entries that the C code shares with Python; every other entry is a CALL.
_FIXED: Final = {code.value: code for code in Code if "{}" not in code.value}
# spec: NVIDIA's naming: an entry point begins with its library
_LIBRARIES: Final = {"cublas": ("cublas",), "cudnn": ("cudnn", "cuDNN"), "nccl": ("nccl", "NCCL")}
_HEADER: Final = Path(__file__).parents[1] / "nullgpu" / "csrc" / "ledger.h"


@brief
@dataclass(frozen=True, slots=True)
class Entry:
    """One line: an entry's kind and code, its count, and a sum of bytes if the kind has one."""

    kind: CallHandling
    name: str
    hits: int
    size_bytes: int = 0
    code: Code = Code.CALL

    @classmethod
    def of(cls, kind: CallHandling, code: Code, hits: int, size_bytes: int = 0, *, name: str = "") -> Entry:
        """Return the entry of something with a code of its own."""
        return cls(kind, name, hits, size_bytes, code)

    @classmethod
    def reported(cls, line: str) -> Entry:
        """Return the entry for a line of the null GPU's report: kind, words, hits, bytes."""
        kind, words, hits, size_bytes = line.split("\t")
        one = cls.counted(words, int(hits))
        return replace(one, kind=CallHandling(kind), size_bytes=int(size_bytes))

    @classmethod
    def counted(cls, what: str, hits: int) -> Entry:
        """Return an assumption counted under its code's words, or under its own name."""
        code = _FIXED.get(what, Code.CALL)
        return cls(CallHandling.ASSUMED, what if code is Code.CALL else "", hits, 0, code)

    @property
    def words(self) -> str:
        """Return the words for readers."""
        return self.code.value.replace("{}", self.name)

    @property
    def is_unknown(self) -> bool:
        """Return whether the entry widens the bound."""
        return self.kind in (CallHandling.REFUSED, CallHandling.ASSUMED)

    @property
    def library(self) -> str:
        """Return the library that the entry shows to be loaded: cublas, cudnn, nccl, or "" for another."""
        if self.kind not in (CallHandling.NOOP, CallHandling.ASSUMED):
            return ""
        return next((library for library, begins in _LIBRARIES.items() if self.words.startswith(begins)), "")

    def to_row(self) -> list[Any]:
        """Return the entry as a row of a trace file."""
        return [self.kind.value, self.code.value, self.name, self.hits, self.size_bytes]

    @classmethod
    def of_row(cls, row: Any) -> Entry:
        """Return the entry in an untrusted row of a trace file.

        Raises:
            TraceFileError: The row is damaged.
        """
        kind, code, name, hits, size_bytes = row
        if not isinstance(name, str) or not all(isinstance(n, int) and 0 <= n < 2**63 for n in (hits, size_bytes)):
            raise TraceFileError(f"a row of the ledger is {str(row)[:100]}, expected kind, code, name, hits and bytes")
        return cls(CallHandling(kind), name, hits, size_bytes, Code(code))


# Calls of torch in words for readers.
SPOKEN: Final = {
    "__bool__": "a condition", "__contains__": "a condition", "__index__": "an index", "__int__": "an integer",
    "__getitem__": "a selection", "__setitem__": "a selection", "item": "a number", "tolist": "numbers",
}  # fmt: skip


def words(entries: Iterable[Entry], *kinds: CallHandling) -> tuple[str, ...]:
    """Return the words for readers of the entries of these kinds, sorted."""
    return tuple(sorted(entry.words for entry in entries if entry.kind in kinds))


def header() -> str:
    """Return the text of `csrc/ledger.h`."""
    lines = [f'#define NG_{code.name} "{text}"' for text, code in _FIXED.items()]
    about = "/* Words of the ledger, shared by the C code and tracer/format/ledger.py, which writes this file. */"
    return "\n".join([about, "#ifndef NULLGPU_LEDGER_H", "#define NULLGPU_LEDGER_H", *lines, "#endif", ""])


if __name__ == "__main__":
    _HEADER.write_text(header())
