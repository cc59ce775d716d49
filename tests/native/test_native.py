"""Tests of the C code under address and undefined-behaviour sanitizers, called by small C programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from vramcast.core.compiler import FLAGS, SANITIZERS
from vramcast.hardware.cards import device
from vramcast.tracer.nullgpu.library.build import build, find_torch, include_folders
from vramcast.tracer.nullgpu.library.entry_points import CSRC

HERE = Path(__file__).parent
CONFIG = device("a100-40gb").with_memory(64 << 20).to_config() + f";context_bytes={8 << 20}"


@pytest.fixture(scope="module")
def sanitizing_compiler(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip if the compiler has no sanitizers."""
    probe = tmp_path_factory.mktemp("probe") / "probe"
    command = ["gcc", "-fsanitize=address,undefined", "-x", "c", "-", "-o", str(probe)]
    compiled = subprocess.run(command, input="int main(void) { return 0; }", text=True, capture_output=True)
    if compiled.returncode or subprocess.run([str(probe)], capture_output=True).returncode:
        pytest.skip("this compiler has no address sanitizer")


@pytest.fixture(scope="module")
def sanitized(needs_null_gpu: None, clean_environment: None, sanitizing_compiler: None) -> Path:
    """Return the stand-ins compiled with sanitizers."""
    return build(sanitize=True)


def compile_and_run(
    source: str, libraries: Path, out: Path, flags: tuple[str, ...] = (), *, config: str = CONFIG, words: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    includes = [
        f"-I{CSRC / 'shim'}",
        *(part for folder in include_folders(find_torch().site) for part in ("-isystem", str(folder))),
    ]
    linked = [str(libraries / name) for name in ("null-cudart.so", "null-cudnn.so", "null-cublas.so", "libcuda.so.1")]
    # The programs find libcudart.so.13 under another file name: LD_PRELOAD names it to the loader; the worker uses dlopen.
    command = [
        "gcc",
        "-std=gnu11",
        "-g",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
        *flags,
        *includes,
        str(HERE / source),
        "-o",
        str(out),
        *linked,
        "-lpthread",
    ]
    compiled = subprocess.run(command, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
    environment = {
        **os.environ,
        "NULLGPU_DEVICE": config,
        "LD_LIBRARY_PATH": str(libraries),
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    environment["ASAN_OPTIONS"] = "detect_leaks=0:halt_on_error=1"  # handles are never freed, as in the driver
    links = out.parent / "sonames"
    links.mkdir(exist_ok=True)
    for path in libraries.glob("null-*.so"):
        dynamic = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True).stdout
        soname = dynamic.partition("soname: [")[2].partition("]")[0]
        if not (links / soname).exists():
            (links / soname).symlink_to(path)
    environment["LD_LIBRARY_PATH"] = f"{links}:{libraries}"
    return subprocess.run([str(out), *words], capture_output=True, text=True, env=environment, timeout=120)


@pytest.mark.parametrize("source", ["memory.c", "descriptors.c"])
def test_c_code_passes_sanitizers(sanitized: Path, tmp_path: Path, source: str) -> None:
    ran = compile_and_run(source, sanitized, tmp_path / "program", ("-fsanitize=address,undefined",))
    assert (ran.returncode, ran.stdout) == (0, "all lines hold\n"), ran.stdout + ran.stderr
    assert "runtime error" not in ran.stderr


@pytest.mark.parametrize("source", ["memory.c", "descriptors.c"])
def test_c_code_passes_without_sanitizers(needs_null_gpu: None, tmp_path: Path, source: str) -> None:
    ran = compile_and_run(source, build(), tmp_path / "program")
    assert (ran.returncode, ran.stdout) == (0, "all lines hold\n"), ran.stdout + ran.stderr


@pytest.mark.parametrize(("config", "words"), [(f"{CONFIG};is_slow=1", ()), (CONFIG, ("fast",))], ids=["slow", "fast"])
def test_orders_work_on_slow_and_fast_cards(sanitized: Path, tmp_path: Path, config: str, words: tuple[str, ...]) -> None:
    flags = ("-fsanitize=address,undefined",)
    ran = compile_and_run("streams.c", sanitized, tmp_path / "program", flags, config=config, words=words)
    assert (ran.returncode, ran.stdout) == (0, "all lines hold\n"), ran.stdout + ran.stderr
    assert "runtime error" not in ran.stderr


@pytest.mark.parametrize("sanitizers", [(), SANITIZERS], ids=["plain", "sanitized"])
@pytest.mark.parametrize("cuda_major", [12, 13])
def test_cublaslt_keeps_attributes_and_rejects_others(
    request: pytest.FixtureRequest, tmp_path: Path, sanitizers: tuple[str, ...], cuda_major: int
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    if sanitizers:
        request.getfixturevalue("sanitizing_compiler")
    source = CSRC / "oracle" / "cublaslt.c"
    program = tmp_path / "program"
    command = [
        "gcc",
        *FLAGS,
        *sanitizers,
        f"-DCUDA_MAJOR={cuda_major}",
        str(source),
        str(HERE / "cublaslt.c"),
        "-o",
        str(program),
    ]
    assert subprocess.run([*command, "-lpthread"], capture_output=True, text=True).stderr == ""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}
    ran = subprocess.run([str(program)], capture_output=True, text=True, env=environment, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "all lines hold\n"), ran.stdout + ran.stderr


def test_sanitizer_finds_wrong_access(sanitized: Path, tmp_path: Path) -> None:
    program = tmp_path / "wrong.c"
    program.write_text(
        "#include <cuda_runtime_api.h>\n#include <stdlib.h>\n"
        "int main(void) { char *small = malloc(4), big[64] = {0};\n"
        "cudaMemcpy(small, big, 64, cudaMemcpyHostToHost); return small[3]; }\n"
    )
    ran = compile_and_run(str(program), sanitized, tmp_path / "program", ("-fsanitize=address,undefined",))
    assert ran.returncode != 0
    assert "heap-buffer-overflow" in ran.stderr
    assert "in cudaMemcpy" in ran.stderr
