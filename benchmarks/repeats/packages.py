"""Software of a row: files of a project's commit and packages of its time in build/repeats, and cuDNN in vramcast's cache.

Each is fetched once. A project is cloned from GitHub, or read from a git directory at build/repeats/git/OWNER+NAME.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.accuracy.published_peaks import export
from benchmarks.accuracy.runner import ROOT
from vramcast.core.files import digest
from vramcast.hardware.stack import Stack
from vramcast.tracer.nullgpu.cudnn.download import fetch
from vramcast.tracer.nullgpu.cudnn.libraries import COMPLETE, installed_stack, number_of

FOLDER: Final = ROOT / "build" / "repeats"


def project(repository: str, commit: str, *paths: str) -> Path:
    """Return a folder with some paths of a commit.

    Raises:
        SystemExit: The repository does not have them.
    """
    folder = FOLDER / f"{repository.replace('/', '+')}-{commit[:12]}-{digest(*paths, digits=6)}"
    if not folder.exists():
        git = FOLDER / "git" / repository.replace("/", "+")
        if not git.exists():
            _run("git", "clone", "--quiet", "--bare", "--filter=blob:none", f"https://github.com/{repository}", str(git))
        part = _part_of(folder)
        export(git, commit, paths, part)
        part.rename(folder)
    return folder


def packages(*requirements: str) -> Path:
    """Return a folder with exactly these packages of PyPI: what they need must be among them, or installed.

    Raises:
        SystemExit: pip failed.
    """
    folder = FOLDER / f"packages-{digest(*requirements, digits=12)}"
    if not folder.exists():
        part = _part_of(folder)
        _run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(part), *requirements)
        part.rename(folder)
    return folder


def cudnn(stack: Stack | None) -> None:
    """Fetch the cuDNN that answers for a stack: with another one, the same row has another result.

    Raises:
        DownloadError: It cannot be fetched.
    """
    wanted = stack.cudnn if stack is not None else None
    if wanted is not None and wanted != installed_stack().cudnn:
        fetch(max(wanted, COMPLETE, key=number_of))


def _part_of(folder: Path) -> Path:
    """Return an empty folder of this process, to become `folder` when it is complete."""
    part = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"'{' '.join(command)}' failed: {done.stderr.strip()[-500:]}")


def search_path(*folders: Path) -> tuple[str, ...]:
    """Return the import path of a job that finds these folders first."""
    return (*map(str, folders), str(ROOT), *sys.path)
