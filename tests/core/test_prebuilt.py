"""The choice between a library that the wheel carries and one that is compiled here, and the reason that is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramcast.core import compiler, prebuilt
from vramcast.core.errors import CompilerError
from vramcast.tracer.nullgpu.library import build as build_module

THIS_MACHINE = ("x86_64", ("glibc", "2.36"))


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder of an installation whose wheel carries two libraries and a null GPU."""
    folder = tmp_path / "prebuilt"
    for name in ("caching-0a.so", "packing-0b.so", "nullgpu/2.11.0-0c/libcuda.so.1"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"library")
    (folder / prebuilt.NEEDS).write_text(json.dumps({"machine": "x86_64", "glibc": "2.17"}))
    monkeypatch.setattr(prebuilt, "FOLDER", folder)
    on(monkeypatch, *THIS_MACHINE)
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))
    return folder


def on(monkeypatch: pytest.MonkeyPatch, machine: str, libc: tuple[str, str]) -> None:
    monkeypatch.setattr(prebuilt.platform, "machine", lambda: machine)
    monkeypatch.setattr(prebuilt.platform, "libc_ver", lambda: libc)


def refuse(target: Path) -> None:
    raise CompilerError("No C compiler found (cc): install one.")


def test_wheel_comes_before_cache_and_compiler(carried: Path, tmp_path: Path) -> None:
    assert compiler.compiled("caching-0a.so", refuse) == carried / "caching-0a.so"
    assert compiler.compiled("nullgpu/2.11.0-0c", refuse) == carried / "nullgpu" / "2.11.0-0c"
    assert prebuilt.origin("caching-0a.so") == "prebuilt"
    assert not (tmp_path / "cache").exists()  # a home that cannot be written to is enough


def test_other_sources_are_compiled(carried: Path, tmp_path: Path) -> None:
    made = compiler.compiled("caching-ff.so", lambda target: target.write_bytes(b"compiled here"))
    assert made == tmp_path / "cache" / "caching-ff.so"
    assert prebuilt.origin("caching-ff.so").startswith(
        "compiled here, because this installation carries caching-0a.so, not caching-ff.so ("
    )


def test_error_says_why_wheel_is_not_enough(carried: Path) -> None:
    with pytest.raises(CompilerError) as raised:
        compiler.compiled("nullgpu/2.12.0-0d", refuse)
    assert str(raised.value) == (
        "No C compiler found (cc): install one. vramcast compiles here because this installation carries nullgpu/2.11.0-0c, "
        "not nullgpu/2.12.0-0d (it was built for other releases of torch and cuDNN, or from other sources)."
    )


def test_names_kind_that_wheel_lacks(carried: Path) -> None:
    assert "carries no oracle, not oracle-0e (" in prebuilt.lack("oracle-0e")


@pytest.mark.parametrize(
    ("machine", "libc", "said"),
    [
        ("aarch64", ("glibc", "2.36"), "aarch64 and glibc 2.36"),
        ("x86_64", ("glibc", "2.9"), "x86_64 and glibc 2.9"),
        ("x86_64", ("", ""), "x86_64 and no glibc"),
    ],
)
def test_other_machine_compiles(
    carried: Path, machine: str, libc: tuple[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, machine, libc)
    assert prebuilt.find("caching-0a.so") is None
    assert prebuilt.lack("caching-0a.so") == (
        f"the compiled libraries of this installation are for x86_64 and glibc 2.17 or newer, and this machine has {said}"
    )


def test_oldest_glibc_is_enough(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "x86_64", ("glibc", "2.17"))
    assert prebuilt.find("packing-0b.so") == carried / "packing-0b.so"


def test_checkout_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path / "none")
    assert prebuilt.find("caching-0a.so") is None
    assert prebuilt.origin("caching-0a.so").startswith("compiled here, because this installation carries no compiled libraries")
    assert not Path(build_module.__file__).parents[3].joinpath("vramcast", "prebuilt").exists()
