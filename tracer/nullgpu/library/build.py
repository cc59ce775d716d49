"""Compiles the null GPU for a torch build: into the wheel if its builder has that build, else once into the cache.

The C sources are compiled against the CUDA headers in torch's own NVIDIA wheels, so that every structure has the layout of that
version. Neither this repository nor the wheel contains NVIDIA's headers or code.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vramcast.core.compiler import FLAGS, SANITIZERS, compiled, cpp_standard, find_compiler, run_compiler, shared_library
from vramcast.core.errors import CompilerError, NullGpuError
from vramcast.core.files import digest
from vramcast.core.releases import INSTALL
from vramcast.tracer.nullgpu.library import entry_points
from vramcast.tracer.nullgpu.library.entry_points import CSRC, Symbol

# The hand-written files of each library; all others are generated only. libcuda holds the common state.
_SOURCES: dict[str, tuple[str, ...]] = {
    "libcuda": ("ledger.c", "device.c", "memory.c", "streams.c", "watchdog.c", "driver.c", "report.c"),
    "libcudart": ("runtime.c",),
    "libcublas": ("blas.c",),
    "libcublasLt": ("blas.c",),
    "libcudnn": ("dnn.c", "dnn_graph.c"),
    "libcufft": ("fft.c",),
    "libcusolver": ("solver.c",),
    "libcusparse": ("sparse.c",),
    "libnccl": ("comm.c",),
    "libnvrtc": ("nvrtc.c",),
    "libcupti": ("cupti.c",),
    "libnvidia-ml": ("nvml.c",),
}
_DIGEST = "entry_points.digest"  # next to the libraries: who has no compiler has no binutils either
WATCHER = CSRC.parents[1] / "recording" / "csrc" / "watcher.cpp"
TOOLS = "tools"  # the folder next to the libraries with programs that a job finds
# The interpreter and the program are those of the job (loader.py): the folder serves several of both.
_SMI = '#!/bin/sh\nexec "$NULLGPU_PYTHON" -IS "$NULLGPU_SMI" "$@"\n'
# spec: cuDNN 9's own files; Transformer Engine's wheel links all of them, although it calls only cuDNN itself
_CUDNN_PARTS = ("adv", "cnn", "engines_precompiled", "engines_runtime_compiled", "graph", "heuristic", "ops")
_FLAGS = (*FLAGS, "-Wno-deprecated-declarations", "-Wno-unused-parameter")  # a stand-in ignores most of its arguments
# A generated stub stands for a call with other arguments, which it ignores, so its declaration may differ from the header's.


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The facts about the installed torch that the null GPU needs; found without importing it."""

    version: str
    cuda: str | None
    lib: Path
    site: Path


def find_torch() -> TorchBuild:
    """Return the installed torch build.

    Raises:
        NullGpuError: torch is missing, or it is a CPU-only build.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NullGpuError(f"torch is not installed here: run {INSTALL}.")
    package = Path(spec.origin).parent
    build = _build_at(package, (package / "version.py").stat().st_mtime_ns)
    if build.cuda is None or not (build.lib / "libtorch_cuda.so").exists():
        raise NullGpuError(
            f"torch {build.version} at {package} is a CPU-only build, it has no CUDA code to run: "
            f"install a CUDA build ({INSTALL} on Linux)."
        )
    return build


@functools.lru_cache(maxsize=1)  # torch's metadata takes a millisecond to parse, and an estimate asks some thirty times
def _build_at(package: Path, changed_ns: int) -> TorchBuild:
    # version.py is read, not run: `cuda: Optional[str] = '13.0'`, or None in a CPU-only build.
    cuda = re.search(r"^cuda[^=\n]*= '([\d.]+)'", (package / "version.py").read_text(), re.MULTILINE)
    return TorchBuild(importlib.metadata.version("torch"), cuda[1] if cuda else None, package / "lib", package.parent)


@dataclass(frozen=True, slots=True)
class KnownBuild:
    """A build of torch with which the null GPU was tested; one entry of known_good.json.

    Attributes:
        entry_points: Its `entry_points_digest`.
        tested: Date of the test.
        deviations: Findings of `python -m benchmarks.new_torch`.
    """

    torch: str
    cuda: str
    entry_points: str
    tested: str
    deviations: tuple[str, ...]


def entry_points_digest(torch: TorchBuild) -> str:
    """Return a digest of the symbols that this build needs from NVIDIA; the driver's functions are looked up by name."""
    return (build(torch) / _DIGEST).read_text()


def known_build(torch: TorchBuild) -> KnownBuild | None:
    """Return the entry of known_good.json for this exact build; None: it was not tested."""
    known = [KnownBuild(**one) for one in json.loads((Path(__file__).parents[1] / "known_good.json").read_text())]
    same = [one for one in known if (one.torch, one.cuda) == (torch.version.partition("+")[0], torch.cuda)]
    return next((one for one in same if one.entry_points == entry_points_digest(torch)), None) if same else None


def include_folders(site: Path) -> list[Path]:
    """Return the folders with NVIDIA's public headers in the wheels next to torch."""
    nvidia = site / "nvidia"
    folders = sorted({path.parent for path in nvidia.glob("*/include/*.h")})
    names = {path.name for folder in folders for path in folder.glob("*.h")}
    missing = [n for n in ("cuda.h", "cuda_runtime_api.h", "cublasLt.h", "cudnn.h", "nccl.h") if n not in names]
    if missing:
        raise NullGpuError(
            f"The CUDA headers {', '.join(missing)} are not in {nvidia}: the null GPU is compiled against the headers in "
            "torch's own NVIDIA wheels. Install torch with its dependencies (no --no-deps)."
        )
    return folders


def _defined(objects: list[Path]) -> set[str]:
    text = entry_points.run_tool("nm", "--defined-only", "--extern-only", *map(str, objects))
    return {line.split()[-1] for line in text.splitlines() if " T " in line}


def _key(torch: TorchBuild) -> str:
    found = hashlib.sha256(torch.version.encode())
    here = Path(__file__)
    for path in sorted(
        [path for path in CSRC.rglob("*") if path.is_file() and path.parent.name != "oracle"]
        + [here, here.with_name("entry_points.py")]
    ):
        found.update(path.read_bytes())
    # torch wheels of one version differ by CUDA version: the sizes of their libraries identify them without reading 1 GB.
    for path in sorted(torch.lib.glob("lib*cuda*.so")):
        found.update(f"{path.name}:{path.stat().st_size}".encode())
    return f"{torch.version}-{found.hexdigest()[:12]}"


def build(torch: TorchBuild | None = None, *, sanitize: bool = False) -> Path:
    """Return the folder with the stand-in libraries for `torch`, compiling them if needed.

    Args:
        torch: The build to serve; default: the installed one.
        sanitize: Compile with address and undefined-behaviour sanitizers (for CI), into a separate folder.
    Raises:
        NullGpuError: There is no compiler, there are no headers, or the cache folder cannot be written; the message gives the
            next step.
        CacheError: Others can write to the cache.
    """
    found, extra = torch or find_torch(), SANITIZERS if sanitize else ()
    try:
        return compiled(
            f"nullgpu/{_key(found)}{'-sanitize' if sanitize else ''}", lambda folder: _build_all(found, folder, extra)
        )
    except CompilerError as error:
        raise NullGpuError(f"The null GPU is compiled once for each torch build: {error}") from None


def build_watcher(torch: TorchBuild) -> Path:
    """Return the library that observes a job's ranges.

    Raises:
        CompilerError: It does not compile here: PyTorch's profiler stands in for it, several times slower.
        CacheError: Others can write to the cache.
    """
    folders = [torch.lib.parent / name for name in ("include", "include/torch/csrc/api/include")]
    headers = [part for folder in folders for part in ("-isystem", str(folder))]
    libraries = [f"-L{torch.lib}", "-ltorch_cpu", "-lc10", "-lstdc++"]
    return shared_library(
        WATCHER, version=torch.version, options=[cpp_standard(torch.version), *headers, *libraries], once=True
    )


def _build_all(torch: TorchBuild, work: Path, extra: Sequence[str]) -> None:
    compiler = find_compiler()
    work.mkdir()
    includes = [f"-I{CSRC}", f"-I{CSRC / 'shim'}"]
    includes += [part for folder in include_folders(torch.site) for part in ("-isystem", str(folder))]
    needed = entry_points.needed_symbols(torch.lib)
    listed = [f"{soname} {s.name}@{s.version}" for soname in sorted(needed) if soname != "libcuda.so.1" for s in needed[soname]]
    (work / _DIGEST).write_text(digest(*listed))
    by_soname = {**needed, "libnvidia-ml.so.1": []}  # NVML is loaded by name: by torch when it needs it, and by nvidia-ml-py
    for soname in sorted(by_soname, key=lambda s: s != "libcuda.so.1"):  # the others are linked to libcuda
        _build_one(soname, entry_points.exported(by_soname[soname], soname), compiler, work, includes, extra)
    (work / "libcuda.so").symlink_to("libcuda.so.1")  # Triton before 3.6 links its launchers to it (-lcuda)
    cudnn = [soname for soname in by_soname if soname.startswith("libcudnn.")]
    for soname in (name.replace("libcudnn", f"libcudnn_{part}") for name in cudnn for part in _CUDNN_PARTS):
        path = work / f"null-{soname[3:].split('.so')[0]}.so"
        run_compiler(compiler, [*_FLAGS, *extra, "-o", str(path), "-x", "c", os.devnull, f"-Wl,-soname,{soname}", "-shared"])

    tool = work / TOOLS / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(_SMI)
    tool.chmod(0o755)


def _build_one(
    soname: str, symbols: list[Symbol], compiler: Sequence[str], work: Path, includes: list[str], extra: Sequence[str]
) -> None:
    library = soname.split(".so")[0]
    objects = []
    for name in _SOURCES.get(library, ()):
        objects.append(work / f"{library}-{Path(name).stem}.o")
        run_compiler(compiler, [*_FLAGS, *extra, *includes, "-c", str(CSRC / name), "-o", str(objects[-1])])
    written = _defined(objects) if objects else set()
    generated = work / f"{library}-generated.c"
    generated.write_text(entry_points.stub_source(symbols, written))
    sources = [str(generated)]
    options = [f"-Wl,-soname,{soname}", "-shared", *entry_points.other_names(symbols)]
    if library == "libcuda":
        table = work / "libcuda-table.c"
        driver_calls = {n for n in written if n.startswith("cu")} | {s.name for s in symbols}
        table.write_text(entry_points.driver_table_source(driver_calls))
        sources.append(str(table))
        options += ["-lpthread", "-ldl"]
    else:
        options += [f"-L{work}", "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN"]
    versions = {symbol.version for symbol in symbols if symbol.version}
    if versions:
        script = work / f"{library}.map"
        exported = sorted({s.name for s in symbols} | {n for n in written if entry_points.guess(n) == library})
        script.write_text("".join(f"{v} {{ global: {'; '.join(exported)}; local: *; }};\n" for v in sorted(versions)[:1]))
        options.append(f"-Wl,--version-script={script}")
    # torch looks for a file named libcudart.so* among the loaded ones, and then loads NVIDIA's own libraries by path.
    file_name = soname if library == "libcuda" else f"null-{library[3:]}.so"
    quiet = ["-Wno-builtin-declaration-mismatch"]
    run_compiler(
        compiler,
        [*_FLAGS, *quiet, *extra, *includes, "-o", str(work / file_name), *map(str, objects), *sources, *options],
    )
