"""Fetches one version of cuDNN into the cache, only on request: `vramcast doctor --get-cudnn 9.10.2`.

pip downloads NVIDIA's own wheel, without its dependencies, and checks its hash. The libraries are extracted and the wheel is
deleted. Nothing is installed. pip decides on the source (its settings, its mirror).
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from vramcast.core.cache import kept
from vramcast.core.errors import CompilerError, DownloadError, UsageError
from vramcast.hardware.stack import cudnn_version
from vramcast.tracer.nullgpu.cudnn.libraries import CACHED, COMPLETE, FOLDER, OLDEST, cached, installed_stack, number_of

_LIBRARY: Final = re.compile(r"libcudnn\w*\.so[.\d]*")
_SAID_CHARACTERS: Final = 600  # arbitrary: the end of pip's output


@dataclass(frozen=True, slots=True)
class Wheel:
    """One file of an index: the project's name, its full version, and the SHA-256 of the file."""

    project: str
    version: str
    sha256: str

    @property
    def cuda(self) -> str:
        """The CUDA version in the project's name: `cu12`."""
        return self.project.rpartition("-")[2]


# spec: hashes of the wheels for Linux x86_64 on PyPI, read 2026-11: the versions named by a release of torch that can answer,
# each in the project that torch names; the oldest that can answer; and the oldest that leaves nothing out.
WHEELS: Final = (
    Wheel("nvidia-cudnn-cu12", "9.8.0.87", "d6b02cd0e3e24aa31d0193a8c39fec239354360d7d81055edddb69f35d53a4c8"),
    Wheel("nvidia-cudnn-cu13", "9.12.0.46", "f3befad533e234069eb61ae0d12cb7aa8af0ccf36f28c1d4273cc0005d990de0"),
    Wheel("nvidia-cudnn-cu12", "9.12.0.46", "73471a185656232b383693294431882edb14584ee47f41c0abd81556b92ef2ac"),
    Wheel("nvidia-cudnn-cu12", "9.10.2.21", "949452be657fa16687d0930933f032835951ef0892b37d2d53824d1a84dc97a8"),
    Wheel("nvidia-cudnn-cu13", "9.19.0.56", "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf"),
    Wheel("nvidia-cudnn-cu13", "9.20.0.48", "0c45dd8eeb50b603f07995b1b300c62ffe6a1980482b82b3bcf94a4ca9d49304"),
)
_OTHERS: Final = "nvidia-cudnn-cu12"  # spec: PyPI, where current versions are built for CUDA 12 too (9.20, 2026-11)


def fetch(version: str) -> Path:
    """Put the libraries of one cuDNN into the cache and return their folder; immediately if they are there.

    Args:
        version: `9.10.2` or `9.10.2.21`.
    Raises:
        UsageError: It is not a version of cuDNN, or one that cannot answer.
        DownloadError: pip, the network, the index or the disk fails, or the file is not the expected one.
    """
    known = cudnn_version(version)
    if known is None:
        raise UsageError(f"'{version}' is not a version of cuDNN: write 9.10.2 or 9.10.2.21.")
    if number_of(known) < number_of(OLDEST):
        raise UsageError(
            f"cuDNN {known} cannot answer without a GPU; {COMPLETE} answers in its place: get that (--get-cudnn {COMPLETE})."
        )
    projects = {wheel.cuda for wheel in WHEELS if _is(wheel.version, known)}
    own = f"cu{installed_stack().cuda_major}"
    for library in cached():
        fits = own not in projects or library.cuda_major is None or f"cu{library.cuda_major}" == own
        if library.version is not None and _is(library.version, known) and fits:
            return library.folder
    try:
        with tempfile.TemporaryDirectory(prefix="vramcast-") as work:
            wheel = _wheel(known, Path(work))
        return kept(f"{CACHED}/{wheel.version}-{wheel.cuda}", lambda folder: _fetched(wheel, folder)) / FOLDER
    except (CompilerError, OSError) as error:
        raise DownloadError(
            f"cuDNN {known} cannot be written to the cache ({error}): set VRAMCAST_CACHE to a folder with 2 GiB free."
        ) from None


def _fetched(wheel: Wheel, folder: Path) -> None:
    """Download a wheel next to `folder`, and extract its libraries into it."""
    file = _download(wheel, folder.parent)
    _take_out(file, folder / FOLDER)
    file.unlink()


def _wheel(version: str, work: Path) -> Wheel:
    """Return the wheel of a version: the one pinned here, else the one in the index."""
    if platform.machine() == "x86_64":
        pinned = [wheel for wheel in WHEELS if _is(wheel.version, version)]
        # The one for torch's CUDA finds torch's NVRTC, which engines compiled at run time need.
        major = installed_stack().cuda_major
        if pinned:
            return min(pinned, key=lambda wheel: wheel.cuda != f"cu{major}")
    wanted = f"{_OTHERS}=={version}" + ("" if version.count(".") == 3 else ".*")
    report = work / "report.json"
    _pip("install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary=:all:", "--report", str(report), wanted)
    try:
        (found,) = json.loads(report.read_text())["install"]
        return Wheel(_OTHERS, found["metadata"]["version"], found["download_info"]["archive_info"]["hashes"]["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DownloadError(f"pip's report on {wanted} has no hash ({error!r}): try a newer pip, 23.1 or later.") from None


def _download(wheel: Wheel, work: Path) -> Path:
    """Download a wheel by pip, which checks the hash."""
    wanted, into = work / "requirements.txt", work / "wheel"
    wanted.write_text(f"{wheel.project}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    options = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(into))
    _pip("download", *options, "-r", str(wanted))
    files = sorted(into.glob("*.whl"))
    if len(files) != 1:
        raise DownloadError(f"pip downloaded {len(files)} files for {wheel.project}=={wheel.version}, expected 1: try again.")
    return files[0]


def _pip(verb: str, *arguments: str) -> None:
    """Run pip of this interpreter.

    Raises:
        DownloadError: It is missing, or it failed; with the end of its output.
    """
    command = [sys.executable, "-P", "-m", "pip", verb, "--quiet", "--no-input", "--disable-pip-version-check", *arguments]
    # NVIDIA's containers constrain pip to their own versions; nothing is installed here.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode == 0:
        return
    said = run.stderr.strip()
    if "No module named pip" in said:
        raise DownloadError(f"{sys.executable} has no pip, which fetches cuDNN: run {sys.executable} -m ensurepip, then again.")
    if "DO NOT MATCH THE HASHES" in said:
        raise DownloadError(f"The downloaded file does not have the expected hash, and is not used: {_end(said)}")
    raise DownloadError(f"pip cannot fetch cuDNN (no network, or no such version?): {_end(said)}")


def _end(said: str) -> str:
    return " ".join(said.split())[-_SAID_CHARACTERS:]


def _take_out(wheel: Path, into: Path) -> None:
    """Write only the libraries of a wheel to a folder.

    Raises:
        DownloadError: It is damaged, has names outside its folder, or has no libraries.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if _is_library(member.filename)]
            if not members:
                raise DownloadError(f"{wheel.name} has no libraries in {FOLDER}: it is not a wheel of cuDNN 9.")
            into.mkdir(parents=True)
            for member in members:
                with archive.open(member) as source, open(into / PurePosixPath(member.filename).name, "xb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
    except (zipfile.BadZipFile, NotImplementedError, FileExistsError) as error:
        raise DownloadError(f"{wheel.name} is damaged ({error}): try again.") from None


def _is_library(name: str) -> bool:
    """Return whether a member is one of cuDNN's libraries.

    Raises:
        DownloadError: Its name is absolute or leaves the folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise DownloadError(f"The wheel has a file outside its folder, {name!r}, and is not used.")
    return path.parent == PurePosixPath(FOLDER.as_posix()) and _LIBRARY.fullmatch(path.name) is not None


def _is(full: str, version: str) -> bool:
    """Return whether a full version matches the requested one, which may lack its last number."""
    return full == version or full.startswith(f"{version}.")
