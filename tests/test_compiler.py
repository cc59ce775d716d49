"""Tests of the C compiler: its command, and compilation of our code without warnings."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from vramcast.core.compiler import cpp_standard, find_compiler, run_compiler, shared_library
from vramcast.core.errors import CompilerError
from vramcast.plans import packing
from vramcast.simulator import compiled
from vramcast.tracer.nullgpu.cudnn.stand_ins import oracle_libraries
from vramcast.tracer.nullgpu.library.build import build, build_watcher, find_torch


@pytest.mark.parametrize("named", ["python -E -s", f"'{sys.executable}' -E -s"])
def test_accepts_compiler_command_with_options(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept `ccache gcc` and `gcc -pthread`."""
    monkeypatch.setenv("CC", named)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert find_compiler()[1:] == ["-E", "-s"]


@pytest.mark.parametrize(
    ("named", "told"), [("ccache-of-none gcc", r"No C compiler found \(ccache-of-none\)"), ("gcc 'x", "No closing quotation")]
)
def test_names_compiler_that_cannot_run(named: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", named)
    with pytest.raises(CompilerError, match=told):
        find_compiler()


@pytest.mark.integration
def test_puts_compiler_options_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", f"'{sys.executable}' -c 'import sys; sys.exit(str(sys.argv[1:]))'")
    with pytest.raises(CompilerError, match=r"does not compile here \(.*\):\n\['-o', 'x'\]"):
        run_compiler(find_compiler(), ["-o", "x"])


@pytest.mark.integration
def test_failure_is_stored_and_said_with_its_first_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "broken.c"
    source.write_text("int f(void) { return first; }\nint g(void) { return second; }\n")
    with pytest.raises(CompilerError, match=r":\n.*error:.*first"):
        shared_library(source, once=True)
    monkeypatch.setattr("vramcast.core.compiler.run_compiler", lambda *_: pytest.fail("it compiles again"))
    with pytest.raises(CompilerError, match=r"error:.*first(.*\n)*.*To try again, delete .*\.failed"):
        shared_library(source, once=True)
    other = tmp_path / "cc"  # may succeed
    other.write_text("")
    other.chmod(0o755)
    monkeypatch.setenv("CC", str(other))
    with pytest.raises(pytest.fail.Exception):
        shared_library(source, once=True)


@pytest.mark.integration
def test_compiles_without_warnings(needs_null_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compile without warnings; a user's newer compiler may warn, which is no error."""
    monkeypatch.setenv("CC", "gcc -Werror")
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    shared_library(compiled.SOURCE)
    shared_library(packing.SOURCE)
    from vramcast.tracer.values import gate

    shared_library(gate.SOURCE, options=gate.OPTIONS)
    build()
    assert build_watcher(find_torch()).exists()
    cudnn = find_torch().site / "nvidia" / "cudnn" / "lib"
    if cudnn.is_dir():
        oracle_libraries(cudnn)


@pytest.mark.parametrize(
    ("torch", "standard"), [("2.6.0", "gnu++17"), ("2.13.0+cpu", "gnu++17"), ("2.14.1", "gnu++20"), ("2.15.0+cu132", "gnu++20")]
)
def test_code_on_torch_has_the_standard_of_its_headers(torch: str, standard: str) -> None:
    assert cpp_standard(torch) == f"-std={standard}"
