"""What is installed: the C files travel, the rooms import from a regular install, and shadow nobody's packages."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "tracer" / "nullgpu" / "csrc"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy so that nothing is left in the checkout; skips without setuptools >= 77."""
    setuptools = pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    isolation = [] if int(setuptools.__version__.split(".")[0]) < 77 else ["--no-build-isolation"]
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        *isolation,
        "--wheel-dir",
        str(folder),
        str(source),
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if built.returncode and "setuptools>=77" in built.stderr + built.stdout:
        pytest.skip("setuptools >= 77 is neither installed nor to be had")
    assert built.returncode == 0, built.stderr
    return next(folder.glob("vramcast-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:  # a pure wheel is its own install
        archive.extractall(target)
    return target


def python(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, cwd=cwd, timeout=120
    )


def test_every_c_file_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        f"vramcast/tracer/nullgpu/csrc/{path.relative_to(CSRC).as_posix()}" for path in CSRC.rglob("*") if path.is_file()
    }
    assert len(sources) > 10
    assert sources - names == set()
    assert {"vramcast/py.typed", "vramcast/cli/main.py", "vramcast/tracer/trace.py"} <= names


def test_the_wheel_takes_no_top_level_name_but_its_own(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"vramcast"}


def test_every_module_of_the_checkout_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    here = {f"vramcast/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "tracer").rglob("*.py")}
    here |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "vramcast").rglob("*.py")}
    assert here - names == set()


def test_a_regular_install_imports_its_rooms_from_itself(installed: Path, tmp_path: Path) -> None:
    code = """
        import sys; sys.path.insert(0, sys.argv[1])
        import vramcast, vramcast.tracer.trace, vramcast.tracer.nullgpu.entry_points as e
        print(vramcast.tracer.trace.__file__); print(len(e.read_list()) > 500); print(len(list(vramcast.__path__)))
    """
    said = python(code, str(installed), cwd=tmp_path)
    assert said.stdout.splitlines() == [str(installed / "vramcast" / "tracer" / "trace.py"), "True", "1"], said.stderr


def test_the_command_is_installed(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    text = archive.read(
        next(name for name in archive.namelist() if name.endswith("entry_points.txt") and "dist-info" in name)
    ).decode()
    assert "vramcast = vramcast.cli.main:entry" in text


@pytest.mark.parametrize("name", ["datasets", "models", "tracer", "simulator", "learner", "benchmarks"])
def test_our_folders_shadow_no_installed_package(tmp_path: Path, name: str) -> None:
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("here = True\n")
    code = f"""
        import sys; sys.path.append(sys.argv[1])  # behind the working folder, as site-packages is
        import {name}, vramcast
        print({name}.here, vramcast.__version__ != "")
    """
    assert python(code, str(tmp_path), cwd=ROOT).stdout == "True True\n"


def test_the_checkout_imports_its_rooms(tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import vramcast.tracer.trace as t; print(t.__file__)"
    assert python(code, str(ROOT), cwd=tmp_path).stdout == f"{ROOT / 'tracer' / 'trace.py'}\n"


def test_no_path_of_a_machine_is_in_the_package() -> None:
    texts = {path: path.read_text() for folder in ("vramcast", "tracer") for path in (ROOT / folder).rglob("*.py")}
    assert [str(path) for path, text in texts.items() if "/work/" in text or "/home/" in text or "/root/" in text] == []
