"""The list of entry points against the C files and the installed torch: nothing undefined, nothing silently zero."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.nullgpu.cudnn.stand_ins import refusing_driver_source
from vramcast.tracer.nullgpu.library import entry_points
from vramcast.tracer.nullgpu.library.build import _FLAGS, build, find_torch
from vramcast.tracer.nullgpu.library.entry_points import CSRC, Symbol, needed_symbols, read_list, stub_source

LISTED = read_list()
# Our own functions, which no library of NVIDIA's has.
OURS = re.compile(r"(ng|nullgpu)_\w+|driver_symbols")


@pytest.fixture(scope="module")
def folder(needs_null_gpu: None, clean_environment: None) -> Path:
    return build()


def defined_in(folder: Path) -> set[str]:
    objects = [str(path) for path in folder.glob("*.o")]
    text = subprocess.run(
        ["nm", "--defined-only", "--extern-only", *objects], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[-1] for line in text.splitlines() if " T " in line}


def named_in_sources() -> set[str]:
    """Return the names before a bracket in the C text, including those that only another CUDA version compiles."""
    return {name for path in CSRC.glob("*.c") for name in re.findall(r"\b(\w+)\s*\(", path.read_text())}


def test_bodies_are_defined_in_c(folder: Path) -> None:
    bodies = {name for name, (_, kind) in LISTED.items() if kind == "body"}
    assert bodies - defined_in(folder) - named_in_sources() == set()


def test_aliases_name_bodies_of_same_library(folder: Path) -> None:
    others = {name: (library, kind.removeprefix("as ")) for name, (library, kind) in LISTED.items() if kind.startswith("as ")}
    assert len(others) > 40
    assert {name for name, (library, of) in others.items() if LISTED.get(of) != (library, "body")} == set()
    assert {of for _, of in others.values()} - defined_in(folder) == set()


def test_hand_written_functions_are_marked_as_bodies(folder: Path) -> None:
    written = {name for name in defined_in(folder) if entry_points.guess(name) and not OURS.fullmatch(name)}
    assert len(written) > 100  # otherwise the check below checks nothing
    assert {name for name in written if LISTED.get(name, ("", "missing"))[1] != "body"} == set()


def test_list_covers_installed_torch(needs_null_gpu: None) -> None:
    needed = {symbol.name for symbols in needed_symbols(find_torch().lib).values() for symbol in symbols}
    assert len(needed) > 400  # the prototype counted more than 540 for torch 2.11
    assert needed - set(LISTED) == set()


def test_exports_needed_symbols_with_version(folder: Path) -> None:
    needed = [symbol for symbols in needed_symbols(find_torch().lib).values() for symbol in symbols]
    libraries = [str(path) for path in [*folder.glob("null-*.so"), folder / "libcuda.so.1"]]
    text = subprocess.run(
        ["nm", "-D", "--defined-only", "--with-symbol-versions", *libraries], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1].replace("@@", "@") for line in text.splitlines() if " T " in line}
    missing = (
        {f"{s.name}@{s.version}" if s.version else s.name for s in needed}
        - exported
        - {name.split("@")[0] for name in exported}
    )
    assert missing == set()


def test_libraries_have_sonames_needed_by_torch(folder: Path) -> None:
    for path in folder.glob("null-*.so"):
        text = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
        soname = re.search(r"SONAME.*\[(.*)\]", text)
        assert soname is not None
        assert soname[1].startswith(f"lib{path.stem.removeprefix('null-')}.so.")


@pytest.mark.parametrize(
    "line",
    ["cudaMalloc body\ncudaMalloc noop", "cudaMalloc maybe", "cudaMalloc", "cudaMalloc noop refuse"],
    ids=["doubled", "kind", "none", "two"],
)
def test_names_malformed_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(f"# a remark\n[libcudart]\n{line}\n")
    with pytest.raises(ValueError, match=r"list\.txt:[34]: 'cudaMalloc"):
        read_list(path)


def test_rejects_entry_before_library(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("cudaMalloc body\n")
    with pytest.raises(ValueError, match=r"list\.txt:1"):
        read_list(path)


def test_refuses_unlisted_symbol() -> None:
    source = stub_source([Symbol("cublasNewThing_v9", "libcublas.so.13", "libcublas.so.13")], set())
    assert 'NG_HIT(NG_REFUSED, "cublasNewThing_v9", 0); return 15;' in source
    unknown_library = stub_source([Symbol("cuFileNew", "", "libcufile.so.0")], set())
    assert "return 1;" in unknown_library


def test_written_symbol_gets_no_stub() -> None:
    assert "cudaMalloc" not in stub_source([Symbol("cudaMalloc", "", "libcudart.so.13")], {"cudaMalloc"})


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("cudaMalloc", "libcudart"),
        ("__cudaRegisterFunction", "libcudart"),
        ("cuMemCreate", "libcuda"),
        ("cublasLtMatmul", "libcublasLt"),
        ("cublasSgemm_v2", "libcublas"),
        ("cusparseLtInit", "libcusparseLt"),
        ("cusparseCreate", "libcusparse"),
        ("ncclAllReduce", "libnccl"),
        ("cuFileDriverOpen", "libcufile"),
        ("custom_function", ""),
        ("malloc", ""),
    ],
)
def test_guesses_library_from_prefix(name: str, library: str) -> None:
    assert entry_points.guess(name) == library


def test_listed_symbols_match_library_prefix() -> None:
    assert {name: library for name, (library, _) in LISTED.items() if entry_points.guess(name) not in ("", library)} == {}


def test_generated_c_compiles_without_warning(needs_null_gpu: None, tmp_path: Path) -> None:
    symbols = [Symbol(name, "", f"{library}.so.1") for name, (library, kind) in LISTED.items() if kind != "body"]
    sources = {"stubs": stub_source(symbols, set()), "refusing": refusing_driver_source(set(LISTED))}
    for name, source in sources.items():
        path = tmp_path / f"{name}.c"
        path.write_text(source)
        flags = [*_FLAGS, "-Wno-builtin-declaration-mismatch", f"-I{CSRC}"]
        run = subprocess.run(
            ["gcc", *flags, "-c", str(path), "-o", str(tmp_path / f"{name}.o")], capture_output=True, text=True
        )
        assert (run.returncode, run.stderr) == (0, "")


def test_driver_finds_call_by_base_name() -> None:
    source = entry_points.driver_table_source(["cuMemFree_v2", "cuInit"])
    assert '{"cuMemFree", (void *)cuMemFree_v2},' in source
    assert '{"cuMemFree_v2", (void *)cuMemFree_v2},' in source
    assert source.count('"cuInit"') == 1


def test_repository_contains_no_nvidia_text() -> None:
    words = re.compile(
        rb"NVIDIA CORPORATION|Copyright[^\n]*NVIDIA|NVIDIA[^\n]*All rights reserved|NOTICE TO LICENSEE", re.IGNORECASE
    )
    assert [str(path) for path in CSRC.rglob("*") if path.is_file() and words.search(path.read_bytes())] == []
    binaries = [path for path in CSRC.rglob("*") if path.is_file() and b"\0" in path.read_bytes()]
    assert binaries == []


def test_worker_serves_installed_torch(tracer: Callable[[], NullGpuTracer]) -> None:
    assert tracer().torch_version.split("+")[0] == find_torch().version.split("+")[0]
