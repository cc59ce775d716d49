"""Libraries that run with torch: the symbols in their wheels are exported, and memory outside the allocator is reported."""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hardware.looked_up import looked_up_by
from vramcast.hardware.context import context_bytes
from vramcast.tracer.format.ledger import CallHandling, Entry
from vramcast.tracer.nullgpu.library.build import build
from vramcast.tracer.nullgpu.library.entry_points import Symbol, exported, read_list, read_wheels
from vramcast.tracer.observation import Observation
from vramcast.tracer.protocol.job_result import Result

LISTED, WHEELS = read_list(), read_wheels()
PAGE = 2 << 20
Probe = Callable[..., tuple[dict[str, Any], Result]]


def test_wheels_file_lists_libraries_and_calls() -> None:
    assert {name.split()[0] for name in WHEELS} >= {"bitsandbytes", "torchao", "xformers", "flash-attn", "apex", "nvidia_ml_py"}
    assert WHEELS["bitsandbytes 0.50.2"]["cudaMemPrefetchAsync"] == "libcudart"
    disagree = {
        name for wheel in WHEELS.values() for name, library in wheel.items() if LISTED.get(name, (library,))[0] != library
    }
    assert disagree == set()


def test_exports_all_symbols_looked_up(needs_null_gpu: None) -> None:
    libraries = {path.stem.removeprefix("null-"): path for path in build().glob("null-*.so")}
    for stem, path in libraries.items():
        text = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True).stdout
        have = {line.split()[-1].partition("@")[0] for line in text.splitlines()}
        wanted = {name for wheel in WHEELS.values() for name, library in wheel.items() if library == f"lib{stem}"}
        # Names that only another CUDA version has are in the C file for that version alone.
        assert {name for name in wanted - have if LISTED.get(name, ("", ""))[1] != "body"} == set(), stem
    assert {"cudart", "cublas", "cublasLt", "nccl", "nvrtc", "cudnn_graph"} <= set(libraries)


def test_unneeded_symbol_gets_library_version() -> None:
    needed = [Symbol("cudaMalloc", "libcudart.so.13", "libcudart.so.13")]
    by_name = {symbol.name: symbol for symbol in exported(needed, "libcudart.so.13")}
    assert by_name["cudaMemPrefetchAsync"].version == "libcudart.so.13"
    assert "cudaGetDeviceProperties_v2" not in by_name  # a body that the C file has only for CUDA 12


@pytest.mark.integration
@pytest.mark.parametrize("package", ["bitsandbytes", "torchao", "xformers", "transformer_engine_cu13", "cupy-cuda13x", "apex"])
def test_installed_library_looks_up_known_symbols(package: str, needs_null_gpu: None) -> None:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"needs {package}")
    libraries = [Path(str(file.locate())) for file in files if ".so" in file.suffixes]
    known = set(LISTED) | {name for wheel in WHEELS.values() for name in wheel}
    assert {name for path in libraries for name in looked_up_by(path)} - known == set()


def test_counts_memory_outside_allocator_separately(probe: Probe) -> None:
    said, result = probe(
        """
        import ctypes
        kept = torch.zeros(1024, device="cuda")
        runtime = ctypes.CDLL("libcudart.so." + torch.version.cuda.split(".")[0])
        first, second, managed = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        statuses = [runtime.cudaMalloc(ctypes.byref(first), ctypes.c_size_t(3 << 20))]
        statuses += [runtime.cudaFree(first)]
        statuses += [runtime.cudaMalloc(ctypes.byref(second), ctypes.c_size_t(1))]
        statuses += [runtime.cudaMallocManaged(ctypes.byref(managed), ctypes.c_size_t(5000), 1)]
        statuses += [runtime.cudaMemPrefetchAsync(managed, ctypes.c_size_t(5000), 0, 0, 0)]
        ctypes.memset(managed, 7, 5000)
        note(statuses=statuses, byte=ctypes.string_at(managed.value + 4999, 1)[0])
        """
    )
    assert said == {"statuses": [0] * 5, "byte": 7}
    beside = {
        entry.kind: entry.size_bytes for entry in result.ledger if entry.kind in (CallHandling.OUTSIDE, CallHandling.MANAGED)
    }
    assert beside == {CallHandling.OUTSIDE: 2 * PAGE, CallHandling.MANAGED: 5000}
    assert result.taken is not None
    assert result.taken.now_bytes == PAGE  # the allocator's
    assert Observation.of(result, "nullgpu").outside_bytes == 2 * PAGE


def test_context_includes_library_memory() -> None:
    plain = context_bytes("a100-40gb", 12, ("cublas",))
    more = plain.with_outside(PAGE)
    assert (more.bytes - plain.bytes, more.high_bytes - plain.high_bytes, more.outside_bytes) == (PAGE, PAGE, PAGE)
    assert Entry.reported("outside\tlibnccl.so.2\t1\t4096") == Entry(CallHandling.OUTSIDE, "libnccl.so.2", 1, 4096)
