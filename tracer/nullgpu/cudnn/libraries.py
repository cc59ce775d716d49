"""Choice of the cuDNN that answers for a job: the one in the job's stack if it is here, else the nearest, with a warning.

A cuDNN may lie in $VRAMCAST_CUDNN_DIR, which then answers for every job; next to torch; elsewhere on the import path; or in the
cache, where `vramcast doctor --get-cudnn` puts it (`download.py`). Nothing is loaded here: the version comes from the folder's
name in the cache, or from pip's metadata next to it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vramcast.core.cache import find_all
from vramcast.core.errors import CompilerError, NullGpuError
from vramcast.hardware.stack import INSTALLED, Stack, cudnn_version
from vramcast.tracer.nullgpu.cudnn.backend import OLDEST_VERSION
from vramcast.tracer.nullgpu.library.build import find_torch

FOLDER: Final = Path("nvidia", "cudnn", "lib")  # spec: its place in NVIDIA's wheels
CACHED: Final = "cudnn"  # in the cache folder, each in `VERSION-cuMAJOR`
_VARIABLE: Final = "VRAMCAST_CUDNN_DIR"
_CHOSEN: Final = f"in ${_VARIABLE}"
OLDEST: Final = cudnn_version(str(OLDEST_VERSION)) or ""  # the oldest that can answer
# The oldest that leaves no engine out without a device. 9.8 to 9.11 announce lists of the same length, and then leave out up to
# half of the engines on real cards of sm_80 and newer: docs/cudnn-engines.md. So it answers in place of all older ones.
COMPLETE: Final = "9.12.0"  # measured: 60 lists for five cards, 2026-11
_ANOTHER: Final = 3  # spec: the `_strangeness` from which the answers are another cuDNN's
# Versions with the same order, as far as they answer. 9.13 differs in later places, 9.19 in first ones.
_ALIKE: Final = (
    (9, 8, 0),
    (9, 13, 0),
)  # measured: record of an A100, 2026-11; includes the first version, not the second


@dataclass(frozen=True, slots=True)
class CudnnLibrary:
    """One cuDNN.

    Attributes:
        folder: Folder of its files.
        version: Its version, if known without loading it.
        place: Where it was found.
        cuda_major: Its CUDA version, if known.
    """

    folder: Path
    version: str | None
    place: str
    cuda_major: int | None = None

    def __str__(self) -> str:
        return f"cuDNN {self.version or 'of unknown version'} {self.place}"

    @property
    def name(self) -> str:
        """Its version, or its folder if the version is unknown."""
        return self.version or str(self.folder)

    @property
    def can_answer(self) -> bool:
        """Return whether it has a deviceless mode; one of unknown version is queried, and reports it itself."""
        return self.version is None or number_of(self.version) >= number_of(OLDEST)


@dataclass(frozen=True, slots=True)
class CudnnChoice:
    """The chosen cuDNN.

    Attributes:
        library: The cuDNN to query.
        is_another: Whether its answers may differ from those of the job's stack; the bound is then wider.
        warning: A note for the reader, or "".
    """

    library: CudnnLibrary
    is_another: bool = False
    warning: str = ""


def choose(stack: Stack | None) -> CudnnChoice:
    """Return the cuDNN that answers for a stack; this is the only place for that decision.

    Args:
        stack: The job's stack; without one, or if it does not name its cuDNN, that of the installed torch counts.
    Raises:
        NullGpuError: None here can answer.
    """
    if platform.system() != "Linux":
        raise NullGpuError(f"cuDNN answers only on Linux, this is {platform.system()}")
    own = _torchs_own()
    wanted = (stack.cudnn if stack is not None else None) or (own.version if own is not None else None)
    here = found()
    if here and here[0].place == _CHOSEN:
        here = here[:1]
    able = [library for library in here if library.can_answer]
    if not able:
        if not here:
            raise NullGpuError(
                f"no cuDNN is installed here: run vramcast doctor --get-cudnn {_named(wanted)}, or set {_VARIABLE} to the "
                "folder of its libraries"
            )
        raise NullGpuError(
            f"{here[0]} cannot answer without a GPU, {OLDEST} is the oldest that can: run vramcast doctor --get-cudnn "
            f"{_named(wanted)}"
        )
    if wanted is None:
        first = able[0]
        if first == own:
            return CudnnChoice(first)
        return CudnnChoice(first, True, f"the cuDNN of the job's stack is unknown, {first} answers: set it with --stack")
    major = installed_stack().cuda_major
    best = min(able, key=lambda library: (_strangeness(library, wanted), _is_of_another_cuda(library, major)))
    advice = f"unset {_VARIABLE}" if best.place == _CHOSEN else f"vramcast doctor --get-cudnn {_named(wanted)}"
    said = f"the job's stack has cuDNN {wanted}"
    if _strangeness(best, wanted)[0] >= _ANOTHER:
        return CudnnChoice(best, True, f"{said}, {best} answers instead: to get the job's own, {advice}")
    if _is_of_another_cuda(best, major):
        why = f"is built for CUDA {best.cuda_major} and has no NVRTC here: it leaves attention out"
        return CudnnChoice(best, True, f"{said}, {best} answers, which {why}: vramcast doctor --get-cudnn {_named(wanted)}")
    if number_of(wanted) >= number_of(COMPLETE):
        return CudnnChoice(best)
    can = "leaves out engines without a GPU" if number_of(wanted) >= number_of(OLDEST) else "cannot answer without a GPU"
    if number_of(best.version or "0") >= number_of(COMPLETE):
        return CudnnChoice(best, False, f"{said}, which {can}: {best} answers for it")
    return CudnnChoice(best, False, f"{said}, which {can}: {best} answers, which leaves some out too: {advice}")


def second_opinion(stack: Stack | None) -> CudnnLibrary | None:
    """Return a cuDNN with other plans to query too, if that of a job's stack is too old to be queried; None: one is enough.

    No record shows which engines such a cuDNN prefers. The newest one that prefers others than the first shows how far the
    choice matters.

    Args:
        stack: The job's stack.
    Raises:
        NullGpuError: None here can answer.
    """
    first = choose(stack)
    if stack is None or not is_too_old(stack) or first.library.place == _CHOSEN:
        return None
    asked = number_of(first.library.version or "0")
    able = [other for other in found() if other.version and other.can_answer]
    others = [other for other in able if not _are_alike(number_of(other.version or "0"), asked)]
    return max(others, key=lambda other: number_of(other.version or "0"), default=None)


def is_too_old(stack: Stack) -> bool:
    """Return whether the cuDNN of a stack cannot be queried."""
    return stack.cudnn is not None and number_of(stack.cudnn) < number_of(OLDEST)


def warning_of(stack: Stack | None) -> str:
    """Return the warning about the chosen cuDNN; "" if there is none, or no cuDNN can answer."""
    try:
        return choose(stack).warning
    except NullGpuError:
        return ""


def completed(stack: Stack | None) -> Stack:
    """Return a job's stack, completed from this machine; without a stack, the installed one."""
    own = installed_stack()
    return (stack or own).over(own)


def is_avoided(weight: Sequence[int], dtype: str, *, channels_last: bool) -> bool:
    """Return whether torch 2.9 computes a convolution itself because its cuDNN is wrong in 3-D.

    Args:
        weight: Sizes of its weight.
        dtype: torch's name for its input's type.
        channels_last: Whether cuDNN would receive it in that format.
    """
    is_3d = len(weight) == 5 and set(weight[2:]) != {1}
    return is_3d and dtype in ("float16", "bfloat16") and not channels_last


def found() -> list[CudnnLibrary]:
    """Return the cuDNNs of this machine: in $VRAMCAST_CUDNN_DIR, next to torch, on the import path, in the cache.

    Raises:
        NullGpuError: $VRAMCAST_CUDNN_DIR is not a folder.
    """
    libraries = []
    if chosen := os.environ.get(_VARIABLE):
        if not Path(chosen).is_dir():
            raise NullGpuError(f"{_VARIABLE}: {chosen} is not a folder: set it to the folder of libcudnn.so.9, or unset it")
        libraries.append(_library(Path(chosen), _CHOSEN))
    own = _torchs_own()
    if own is not None:
        libraries.append(own)
    sites = [_torch_site(), *map(Path, sys.path)]
    elsewhere = [site / FOLDER for site in sites if site is not None and (site / FOLDER).is_dir()]
    libraries += [_library(folder, "installed here") for folder in elsewhere[:1] if own is None or folder != own.folder]
    return libraries + cached()


def cached() -> list[CudnnLibrary]:
    """Return the cuDNNs in the cache, oldest first.

    Raises:
        CacheError: Others can write to it.
    """
    try:
        folders = find_all(f"{CACHED}/*-cu*/{FOLDER}")
    except CompilerError:  # there is no cache
        return []
    libraries = [_library(folder, "in the cache") for folder in folders]
    return sorted(libraries, key=lambda library: number_of(library.version or "0"))


def installed_stack() -> Stack:
    """Return the stack of this machine: that of its torch, and the cuDNN next to it."""
    try:
        torch = find_torch()
    except NullGpuError:  # a CPU-only build, or none
        return Stack(source=INSTALLED)
    own = _torchs_own()
    return Stack(torch.version, torch.cuda, own.version if own is not None else None, INSTALLED)


def _torchs_own() -> CudnnLibrary | None:
    """Return the cuDNN that belongs to the installed torch; None for a CPU-only build, or one with its cuDNN elsewhere."""
    try:
        folder = find_torch().site / FOLDER
    except NullGpuError:
        return None
    return _library(folder, "beside torch") if folder.is_dir() else None


def _torch_site() -> Path | None:
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parents[1] if spec is not None and spec.origin is not None else None


def _library(folder: Path, place: str) -> CudnnLibrary:
    """Return the cuDNN in a folder with the version that its surroundings show."""
    site = folder.parents[2] if len(folder.parents) > 2 else folder
    known = _versions_in(site, site.stat().st_mtime_ns)
    major = None
    if match := re.fullmatch(r"([\d.]+)-cu(\d+)", site.name):  # our cache
        known, major = frozenset({match[1]}), int(match[2])
    return CudnnLibrary(folder, cudnn_version(next(iter(known))) if len(known) == 1 else None, place, major)


@functools.lru_cache
def _versions_in(site: Path, stamp: int) -> frozenset[str]:
    """Return the versions of cuDNN that pip installed in a folder of packages; looking takes milliseconds."""
    names = [path.name for path in site.glob("nvidia_cudnn_cu*.dist-info")]
    return frozenset(match[1] for name in names if (match := re.search(r"-([\d.]+)\.dist", name)))


def _is_of_another_cuda(library: CudnnLibrary, major: int | None) -> bool:
    """Return whether its engines compiled at run time (attention) find no NVRTC next to the installed torch."""
    return None not in (library.cuda_major, major) and library.cuda_major != major


def number_of(version: str) -> tuple[int, ...]:
    """Return a version's first three numbers."""
    return tuple(int(part) for part in version.split(".")[:3])


def _strangeness(library: CudnnLibrary, wanted: str) -> tuple[int, int]:
    """Return how far a cuDNN's answers may be from those of the requested version; less is better.

    Returns:
        0 itself, or the complete one in its place; 1 itself, leaving engines out; 2 alike; 3 by distance; 4 unknown.
    """
    if library.version is None:
        return 4, 0
    is_, itself, asked = number_of(library.version), number_of(wanted), number_of(_named(wanted))
    distance = abs((is_[0] - asked[0]) * 10_000 + (is_[1] - asked[1]) * 100 + is_[2] - asked[2])
    if is_ in (asked, itself):
        return (0 if is_ == asked else 1), 0
    return (2 if _are_alike(is_, asked) else _ANOTHER), distance


def prefers_others(version: str, wanted: str) -> bool:
    """Return whether a cuDNN may prefer other engines than a wanted one; "" is none, and a folder is one of unknown version."""
    return not version[:1].isdigit() or not _are_alike(number_of(version), number_of(wanted))


def _are_alike(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether two versions prefer the same engines, as far as they answer."""
    low, high = _ALIKE
    return one == other or (low <= one < high and low <= other < high)


def _named(wanted: str | None) -> str:
    """Return the version to query and to fetch: three numbers, and one that leaves nothing out."""
    return ".".join(map(str, number_of(max(wanted or COMPLETE, COMPLETE, key=number_of))))
