"""The two libraries next to the real cuDNN in the oracle's process: compiled once for each cuDNN.

    libcuda.so.1         every call reports that there is no device: NVIDIA's libraries never run on a driver that simulates one
    libcublasLt.so.12/13 descriptors and heuristics without mathematics (csrc/oracle/cublaslt.c)

cuDNN looks their functions up by name, and silently drops the engines that need a missing one from its suggestions. So the
names are read from the installed cuDNN.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from vramcast.core.compiler import FLAGS, compiled, find_compiler, run_compiler
from vramcast.core.errors import NullGpuError
from vramcast.tracer.nullgpu.library.entry_points import CSRC, run_tool

_CUBLASLT = CSRC / "oracle" / "cublaslt.c"
_NO_DEVICE = 100  # spec: CUDA_ERROR_NO_DEVICE
_DRIVER_NAME = re.compile(rb"\0(cu[A-Z][A-Za-z0-9_]{3,60})(?=\0)")
_CUBLASLT_NAME = re.compile(rb"\0(cublasLt[A-Z][A-Za-z0-9_]{2,60})(?=\0)")
_CUBLASLT_FILE = re.compile(rb"\0libcublasLt\.so\.(\d+)\0")
# A library's code and kernels contain no names, and are nearly all of it: 600 of 620 MB.
_TEXT_SECTION = re.compile(r"\] (\.l?rodata\S*)\s+PROGBITS\s+[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The functions that a cuDNN looks up in other libraries.

    Attributes:
        driver: Functions of libcuda.
        cublaslt: Functions of libcublasLt.
        cuda_major: CUDA version of the libcublasLt that it loads; None: it names none.
    """

    driver: frozenset[str]
    cublaslt: frozenset[str]
    cuda_major: int | None


def looked_up(cudnn: Path) -> LookedUp:
    """Return the functions that the libraries in `cudnn` look up at run time, from names in their read-only data, or link.

    Args:
        cudnn: Folder of libcudnn*.so.9.
    Raises:
        NullGpuError: binutils are not installed.
    """
    driver: set[str] = set()
    cublaslt: set[str] = set()
    majors: set[int] = set()
    for path in sorted(cudnn.glob("libcudnn*.so.*")):
        text = _read_only_data(path)
        driver |= {name.decode() for name in _DRIVER_NAME.findall(text)}
        cublaslt |= {name.decode() for name in _CUBLASLT_NAME.findall(text)}
        majors |= {int(major) for major in _CUBLASLT_FILE.findall(text)}
        undefined = run_tool("nm", "-D", "--undefined-only", str(path)).splitlines()
        driver |= {name for line in undefined if re.fullmatch(r"cu[A-Z]\w+", name := line.split()[-1].split("@")[0])}
    return LookedUp(frozenset(driver), frozenset(cublaslt), max(majors, default=None))


def _read_only_data(path: Path) -> bytes:
    parts = [b"\0"]
    with path.open("rb") as file:
        for _, offset, size in _TEXT_SECTION.findall(run_tool("readelf", "-SW", str(path))):
            file.seek(int(offset, 16))
            parts.append(file.read(int(size, 16)))
    return b"\0".join([*parts, b"\0"])


def oracle_libraries(cudnn: Path) -> Path:
    """Return the folder with both libraries for a cuDNN, compiling them if needed.

    Args:
        cudnn: Folder of its libraries.
    Raises:
        NullGpuError: cuDNN looks up a function of cuBLASLt that the stand-in lacks, this is no cuDNN, or binutils are missing.
        CompilerError: There is no compiler, or the cache folder cannot be written.
        CacheError: Others can write to the cache.
    """
    digest = hashlib.sha256()
    for path in (Path(__file__), _CUBLASLT):
        digest.update(path.read_bytes())
    for path in sorted(cudnn.glob("libcudnn*.so.*")):
        digest.update(f"{path.name}:{path.stat().st_size}".encode())

    return compiled(f"oracle-{digest.hexdigest()[:12]}", lambda folder: _compile(cudnn, folder))


def _compile(cudnn: Path, folder: Path) -> None:
    compiler, names = find_compiler(), looked_up(cudnn)
    folder.mkdir()
    if names.cuda_major is None:
        raise NullGpuError(f"The libraries in {cudnn} name no libcublasLt, as every cuDNN 9 does: is this cuDNN?")
    refusing = folder / "refusing.c"
    refusing.write_text(refusing_driver_source(names.driver | {"cuInit"}))
    shared = [*FLAGS, "-shared"]
    visible = ["-fvisibility=default", "-Wl,-soname,libcuda.so.1"]
    run_compiler(compiler, [*shared, *visible, "-o", str(folder / "libcuda.so.1"), str(refusing)])
    library = folder / f"libcublasLt.so.{names.cuda_major}"
    options = [f"-DCUDA_MAJOR={names.cuda_major}", f"-Wl,-soname,{library.name}", "-lpthread"]
    run_compiler(compiler, [*shared, "-o", str(library), str(_CUBLASLT), *options])
    there = {line.split()[-1] for line in run_tool("nm", "-D", "--defined-only", str(library)).splitlines()}
    if missing := sorted(names.cublaslt - there):
        raise NullGpuError(
            f"The cuDNN in {cudnn} looks up {', '.join(missing)}, which vramcast's stand-in for cuBLASLt lacks: engines that "
            "need it would silently drop out. Choose another cuDNN with VRAMCAST_CUDNN_DIR, and please report this version."
        )


def refusing_driver_source(names: frozenset[str] | set[str]) -> str:
    """Return C code for a libcuda in which every call reports that there is no device."""
    lines = ["/* Generated by stand_ins.py. */"]
    lines += [f"int {name}(void);\nint {name}(void) {{ return {_NO_DEVICE}; }}" for name in sorted(names)]
    return "\n".join(lines) + "\n"
