"""Compilation of the stand-ins: once, by one of several processes, and with a clear error if it fails."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.core.cache import cache_folder
from vramcast.core.errors import NullGpuError
from vramcast.tracer.nullgpu.library import build as build_module
from vramcast.tracer.nullgpu.library.build import KnownBuild, TorchBuild, build, find_torch, include_folders, known_build

builds = pytest.mark.usefixtures("needs_null_gpu")  # the installed torch, for which the stand-ins are made


@builds
def test_second_build_reuses_first(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build()
    monkeypatch.setattr(build_module, "_build_all", None)  # calling it would fail
    assert build() == folder


@builds
def test_leaves_nothing_incomplete_in_cache() -> None:
    build()
    assert list((cache_folder() / "nullgpu").glob(".build-*")) == []


@builds
@pytest.mark.parametrize("compiler", ["/no/such/compiler", ""])
def test_missing_compiler_error_gives_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    torch = find_torch()
    monkeypatch.setenv("PATH", str(tmp_path))  # contains neither cc nor gcc
    with pytest.raises(NullGpuError, match=r"No C compiler found.*apt-get install gcc"):
        build(torch)


@builds
def test_missing_binutils_error_gives_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "gcc").symlink_to(str(shutil.which("gcc")))
    monkeypatch.delenv("CC", raising=False)
    torch = find_torch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NullGpuError, match=r"'readelf' is not installed.*Install a C compiler with binutils"):
        build(torch)


@builds
def test_shows_message_of_failing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'no rule for this machine' >&2; exit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))
    with pytest.raises(NullGpuError, match=r"does not compile here.*\n.*no rule for this machine"):
        build()
    assert list((tmp_path / "cache" / "nullgpu").iterdir()) == []


def fake_site(folder: Path, version_text: str) -> Path:
    package = folder / "torch"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('find_torch must not import torch')")
    (package / "version.py").write_text(version_text)
    info = folder / "torch-2.11.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+cpu\n")
    return folder


@pytest.mark.integration
@pytest.mark.parametrize("text", ["cuda: Optional[str] = None\n", "cuda = None\n", "", "cuda: Optional[str] = '13.0'\n"])
def test_rejects_cpu_only_torch_without_import(tmp_path: Path, text: str) -> None:
    # The last case has the version but not the library: an install that lost its parts.
    site = fake_site(tmp_path, text)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from vramcast.tracer.nullgpu.library.build import find_torch\n"
        "try:\n    find_torch()\nexcept Exception as error:\n    print(type(error).__name__, error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code, str(site)], capture_output=True, text=True, timeout=60)
    assert said.stdout.startswith("NullGpuError torch 2.11.0+cpu"), said.stderr
    assert "CPU-only build" in said.stdout
    assert "install a CUDA build" in said.stdout


def test_missing_torch_error_gives_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NullGpuError, match="torch is not installed here: run pip install"):
        find_torch()


def test_names_missing_headers(tmp_path: Path) -> None:
    (tmp_path / "nvidia" / "cu13" / "include").mkdir(parents=True)
    (tmp_path / "nvidia" / "cu13" / "include" / "cuda.h").touch()
    with pytest.raises(NullGpuError, match=r"headers cuda_runtime_api.h, .*cudnn.h.*Install torch with its dependencies"):
        include_folders(tmp_path)


@builds
def test_unwritable_cache_error_names_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/vramcast")):
        monkeypatch.setenv("VRAMCAST_CACHE", str(place))
        with pytest.raises(NullGpuError, match="set VRAMCAST_CACHE to a"):
            build()


@builds
def test_full_cache_error_names_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build_module, "_build_all", full)
    with pytest.raises(NullGpuError, match=r"No space left on device.*set VRAMCAST_CACHE to a folder with"):
        build()
    assert list((tmp_path / "nullgpu").iterdir()) == []


def test_environment_sets_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "a" / "b"))
    assert cache_folder() == tmp_path / "a" / "b"
    monkeypatch.delenv("VRAMCAST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "vramcast"


@pytest.mark.release
@builds
def test_concurrent_builds_share_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    torch = find_torch()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: build(torch), range(2))
    assert first == second
    assert [path.name for path in (tmp_path / "nullgpu").iterdir()] == [first.name]
    assert (first / "libcuda.so.1").exists()


@builds
def test_other_torch_has_own_folder() -> None:
    torch = find_torch()
    assert build_module._key(torch) != build_module._key(dataclasses.replace(torch, version="2.11.1"))


@builds
def test_build_is_independent_of_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build()
    monkeypatch.chdir(tmp_path)
    assert build() == before
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------------------ tested builds
def listed_builds() -> list[KnownBuild]:
    return [KnownBuild(**one) for one in json.loads((Path(build_module.__file__).parents[1] / "known_good.json").read_text())]


def test_recognizes_known_build_by_entry_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (first, *_) = listed_builds()
    torch = TorchBuild(f"{first.torch}+cu{first.cuda.replace('.', '')}", first.cuda, tmp_path, tmp_path)
    monkeypatch.setattr(build_module, "entry_points_digest", lambda torch: first.entry_points)
    assert known_build(torch) == first
    monkeypatch.setattr(build_module, "entry_points_digest", lambda torch: "another")
    assert known_build(torch) is None
    assert known_build(dataclasses.replace(torch, version="2.5.0")) is None
    assert known_build(dataclasses.replace(torch, cuda="11.8")) is None


def test_pinned_torch_has_no_deviations(needs_null_gpu: None) -> None:
    torch = find_torch()
    if not torch.version.startswith("2.11.0"):
        pytest.skip("another torch is installed")
    found = known_build(torch)
    assert found is not None
    assert list(found.deviations) == []


def test_known_builds_are_unique() -> None:
    builds = [(one.torch, one.cuda, one.entry_points) for one in listed_builds()]
    assert len(builds) == len(set(builds)) >= 5
