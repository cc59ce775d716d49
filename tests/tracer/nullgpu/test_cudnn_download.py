"""One cuDNN fetched into the cache: wheels of a few bytes in a folder stand for the index, pip is real."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vramcast.core.errors import DownloadError, UsageError
from vramcast.hardware.stack import Stack
from vramcast.tracer.nullgpu.cudnn import download as cudnn_fetch
from vramcast.tracer.nullgpu.cudnn.download import WHEELS, Wheel, fetch
from vramcast.tracer.nullgpu.cudnn.libraries import COMPLETE, FOLDER, cached, number_of

LIB = "nvidia/cudnn/lib/"
FILES = {
    f"{LIB}libcudnn.so.9": "front",
    f"{LIB}libcudnn_graph.so.9": "graph",
    f"{LIB}__init__.py": "",
    f"{LIB}deeper/libcudnn_graph.so.9": "not here",
    "nvidia/cudnn/include/cudnn.h": "no header",
    "libcudnn_ops.so.9": "not here",
}
Index = Callable[..., Wheel]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """Return a function that puts a wheel into the only index that pip sees, and pins it."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        pytest.skip("pip is not installed")
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {"VRAMCAST_CACHE": tmp_path / "cache", "PIP_FIND_LINKS": folder, "PIP_NO_INDEX": "1"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(cudnn_fetch.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cudnn_fetch, "WHEELS", ())

    def put(version: str, files: dict[str, str] = FILES, *, pinned: bool = True, sha256: str = "") -> Wheel:
        path = folder / f"nvidia_cudnn_cu12-{version}-py3-none-any.whl"
        info = f"nvidia_cudnn_cu12-{version}.dist-info"
        # Its dependencies are missing from the index: pip must not look for them.
        metadata = f"Metadata-Version: 2.1\nName: nvidia-cudnn-cu12\nVersion: {version}\nRequires-Dist: nvidia-cublas-cu12\n"
        tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, text in {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": tag, f"{info}/RECORD": ""}.items():
                wheel.writestr(name, text)
        made = Wheel("nvidia-cudnn-cu12", version, sha256 or hashlib.sha256(path.read_bytes()).hexdigest())
        if pinned:
            monkeypatch.setattr(cudnn_fetch, "WHEELS", (made,))
        return made

    return put


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "cudnn").glob("*"))


@pytest.mark.parametrize("version", ["9.10.2", "9.10.2.21", "91002"])
@pytest.mark.parametrize("pinned", [True, False])
def test_extracts_only_libraries_into_cache(index: Index, tmp_path: Path, version: str, pinned: bool) -> None:
    index("9.10.2.21", pinned=pinned)
    folder = fetch(version)
    assert folder == tmp_path / "cache" / "cudnn" / "9.10.2.21-cu12" / FOLDER
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "libcudnn.so.9": "front",
        "libcudnn_graph.so.9": "graph",
    }
    assert left_in(tmp_path / "cache") == ["9.10.2.21-cu12"]  # neither the wheel nor incomplete files
    assert [(library.version, library.folder) for library in cached()] == [("9.10.2.21", folder)]


def test_does_not_fetch_cached_version(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index("9.10.2.21")
    folder = fetch("9.10.2")
    monkeypatch.setattr(cudnn_fetch, "_pip", None)
    assert fetch("9.10.2") == fetch("9.10.2.21") == folder


def test_ignores_cached_version_for_other_cuda(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index("9.10.2.21")
    fetch("9.10.2")  # for CUDA 12
    both = (cudnn_fetch.WHEELS[0], replace(cudnn_fetch.WHEELS[0], project="nvidia-cudnn-cu13"))
    monkeypatch.setattr(cudnn_fetch, "WHEELS", both)
    monkeypatch.setattr(cudnn_fetch, "installed_stack", lambda: Stack("2.11.0", "13.0", None))
    monkeypatch.setattr(cudnn_fetch, "_pip", None)
    with pytest.raises(TypeError):  # it calls pip
        fetch("9.10.2")


def test_rejects_wrong_hash(index: Index, tmp_path: Path) -> None:
    index("9.10.2.21", sha256="0" * 64)
    with pytest.raises(DownloadError, match="does not have the expected hash"):
        fetch("9.10.2")
    assert left_in(tmp_path / "cache") == []


def test_reports_version_missing_from_index(index: Index, tmp_path: Path) -> None:
    index("9.10.2.21")
    with pytest.raises(DownloadError, match="no network, or no such version"):
        fetch("9.14.0")
    assert left_in(tmp_path / "cache") == []


@pytest.mark.parametrize("name", [f"{LIB}../../../libcudnn.so.9", "/tmp/libcudnn.so.9", f"{LIB}..\\libcudnn.so.9"])
def test_rejects_wheel_with_name_outside_folder(index: Index, tmp_path: Path, name: str) -> None:
    index("9.10.2.21", {**FILES, name: "bad"})
    with pytest.raises(DownloadError, match="has a file outside its folder"):
        fetch("9.10.2")
    assert left_in(tmp_path / "cache") == []


def test_rejects_wheel_without_libraries(index: Index) -> None:
    index("9.10.2.21", {"nvidia/cudnn/include/cudnn.h": ""})
    with pytest.raises(DownloadError, match="has no libraries"):
        fetch("9.10.2")


def test_reports_damaged_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "damaged.whl"
    wheel.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DownloadError, match=r"damaged\.whl is damaged"):
        cudnn_fetch._take_out(wheel, tmp_path / "out")


def test_slower_download_takes_existing_copy(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = index("9.10.2.21")
    folder = fetch("9.10.2")
    monkeypatch.setattr(cudnn_fetch, "cached", list)  # it looked before the other was done
    assert fetch("9.10.2") == folder
    assert left_in(tmp_path / "cache") == [f"{wheel.version}-cu12"]


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("9.5.1", "cannot answer .* get that .--get-cudnn 9.12.0"),
        ("8.9.2.26", "9.12.0 answers"),
        ("newest", "is not a version"),
    ],
)
def test_rejects_versions_that_cannot_answer(version: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fetch(version)


def test_reports_missing_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'python: No module named pip' >&2; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cudnn_fetch.sys, "executable", str(python))
    with pytest.raises(DownloadError, match=r"has no pip, .* -m ensurepip"):
        fetch("9.10.2")


def test_reports_unwritable_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cudnn").write_text("a file in the way")
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    with pytest.raises(DownloadError, match=r"cannot be written .* set VRAMCAST_CACHE"):
        fetch("9.10.2")


def test_pinned_wheels_can_answer_and_have_hashes() -> None:
    assert all(len(bytes.fromhex(wheel.sha256)) == 32 and wheel.cuda in ("cu12", "cu13") for wheel in WHEELS)
    assert all(number_of(wheel.version) >= (9, 8, 0) for wheel in WHEELS)


@pytest.mark.parametrize(
    ("cuda", "project"), [("13.0", "nvidia-cudnn-cu13"), ("12.8", "nvidia-cudnn-cu12"), (None, "nvidia-cudnn-cu13")]
)
def test_prefers_wheel_for_torch_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str | None, project: str) -> None:
    monkeypatch.setattr(cudnn_fetch.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cudnn_fetch, "installed_stack", lambda: Stack("2.11.0", cuda, None))
    wheel = cudnn_fetch._wheel(COMPLETE, tmp_path)
    assert (wheel.project, wheel.version) == (project, "9.12.0.46")
