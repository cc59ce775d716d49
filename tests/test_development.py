"""Tests of the set-up and the lanes of development: exact versions, environments of one checkout, times at the end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from vramcast.core.releases import REFERENCE

ROOT = Path(__file__).parents[1]
CONSTRAINTS = sorted((ROOT / ".ci" / "constraints").glob("*.txt"))
DEVELOPMENT = {"pytest", "ruff", "mypy", "sphinx", "hypothesis", "playwright", "pre-commit", "uv"}


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def project() -> dict[str, dict[str, list[str]]]:
    """Return the requirements of pyproject.toml by kind and by extra or group."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {
        "product": {"": read["project"]["dependencies"]},
        "extras": read["project"]["optional-dependencies"],
        "groups": read["dependency-groups"],
    }


@pytest.mark.parametrize("path", CONSTRAINTS, ids=lambda path: path.name)
def test_constraints_are_exact_versions_without_an_index(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 50
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)] == []


def test_every_requirement_has_an_exact_version() -> None:
    files = [path for path in CONSTRAINTS if path.stem in ("reference", "serving")]
    pinned = {name for path in files for name in re.findall(r"^(\S+)==", path.read_text(), re.MULTILINE)}
    wanted = {name_of(one) for kind in project().values() for listed in kind.values() for one in listed} - {"vramcast"}
    assert wanted - pinned == set()


def test_reference_is_the_installed_release() -> None:
    assert f"torch=={REFERENCE}" in project()["groups"]["torch"]


def test_extras_are_only_for_users() -> None:
    offered = {name_of(one) for listed in project()["extras"].values() for one in listed}
    assert offered & DEVELOPMENT == set()
    grouped = {name_of(one) for listed in project()["groups"].values() for one in listed}
    assert grouped >= DEVELOPMENT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the files that set up a checkout."""
    copy = tmp_path / "checkout"
    for name in ("Makefile", "pyproject.toml", ".ci"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name)
        else:
            copy.mkdir(exist_ok=True)
            shutil.copy2(source, copy / name)
    return copy


def run(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "VENV"))}
    return subprocess.run(words, cwd=cwd, env=kept | variables, capture_output=True, text=True, check=False)


@pytest.mark.integration
def test_refuses_the_environment_of_another_checkout(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / ".venv"
    other.mkdir(parents=True)
    (other / ".checkout").write_text(f"{other.parent}\n")
    done = run("make", "lint", f"VENV={other}", cwd=checkout)
    assert done.returncode == 2
    assert f"{other} belongs to the checkout {other.parent}: set VENV" in done.stderr
    assert sorted(path.name for path in other.iterdir()) == [".checkout"]


@pytest.mark.integration
def test_accepts_its_own_environment(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / ".checkout").write_text(f"{checkout}\n")
    done = run("make", "--dry-run", "lint", cwd=checkout)
    assert done.returncode == 0, done.stderr


@pytest.mark.integration
def test_refuses_folder_that_it_did_not_make(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = run(str(checkout / ".ci" / "setup"), str(tmp_path / "mine"), "demo", cwd=checkout)
    assert done.returncode == 2
    assert "was not made by this Makefile" in done.stderr
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.integration
def test_steps_stop_at_first_failure(checkout: Path) -> None:
    (checkout / "Makefile").write_text("good:\n\t@echo '1 failed, 41 passed in 3.00s'\nbad:\n\t@exit 1\nnever:\n\t@touch ran\n")
    done = run(".ci/steps", "good", cwd=checkout)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\| `good` \| 41 \| 0:0\d \|$", done.stdout, re.MULTILINE)
    assert re.search(r"^\| all \| \| 0:0\d \|$", done.stdout, re.MULTILINE)
    assert run(".ci/steps", "bad", "never", cwd=checkout).returncode != 0
    assert not (checkout / "ran").exists()
