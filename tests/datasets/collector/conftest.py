"""A replacement of NVML, and its card's state."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled replacement; skip without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml.c")
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture
def card(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the state of NVML's one card: bytes in use, and of each process."""
    state = tmp_path / "nvml-state"
    monkeypatch.setenv("VRAMCAST_NVML", str(nvml_library))
    monkeypatch.setenv("NVML_STATE", str(state))

    def set_state(used: int, processes: dict[int, int] | None = None) -> None:
        new = state.with_suffix(".new")
        new.write_text(f"{used}\n" + "".join(f"{pid} {size}\n" for pid, size in (processes or {}).items()))
        os.replace(new, state)  # the library may read it at any moment

    return set_state
