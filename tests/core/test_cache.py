"""The cache: its ownership checks, because its code runs as its reader, and its use by two users."""

from __future__ import annotations

import email.parser  # noqa: F401  importlib.metadata wants it late, and the other user may not be able to read this Python
import os
import pickle
import shutil
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vramcast.core import cache
from vramcast.core.compiler import shared_library
from vramcast.core.errors import CacheError, CannotEstimate, CompilerError
from vramcast.core.location import import_root
from vramcast.simulator import compiled
from vramcast.tracer.nullgpu.cudnn.answer_cache import AnswerCache, answers_file
from vramcast.tracer.nullgpu.cudnn.libraries import CACHED, FOLDER, cached
from vramcast.tracer.processes import job_process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes of files are POSIX's")
STRANGER = 12345  # arbitrary: a user who is neither root nor runs tests
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a cache folder that every user can reach, unlike pytest's own."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    monkeypatch.setenv("VRAMCAST_CACHE", str(place / "cache"))
    yield place / "cache"
    shutil.rmtree(place)


def put(name: str, *files: str) -> Path:
    """Keep a folder of files, or a file if there are none."""

    def make(made: Path) -> None:
        if not files:
            made.write_text("content")
        for file in files:
            (made / file).parent.mkdir(parents=True, exist_ok=True)
            (made / file).write_text("content")

    return cache.kept(name, make)


def as_stranger(function: Callable[[], Any], home: Path) -> Any:
    """Return the result of `function` for another user; "TRACEBACK ..." for an error that is not ours."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            os.environ["HOME"] = str(home)
            os.environ.pop("XDG_CACHE_HOME", None)
            answer: Any = function()
        except CannotEstimate as error:
            answer = error
        except BaseException:
            answer = f"TRACEBACK {traceback.format_exc()}"
        os.write(writing, pickle.dumps(answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    return pickle.loads(said)


def stranger_owns(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


SPOILED: dict[str, Callable[[Path], None]] = {
    "open to all": lambda path: path.chmod(path.stat().st_mode | 0o777),
    "open to the group": lambda path: path.chmod(path.stat().st_mode | stat.S_IWGRP),
    "sticky": lambda path: path.chmod(0o1777),
}


@pytest.mark.parametrize("how", [*SPOILED, pytest.param("a stranger's", marks=as_root)])
@pytest.mark.parametrize("what", [".", "libraries", "libraries/KEY", "libraries/KEY/deep", "libraries/KEY/deep/libcuda.so.1"])
def test_rejects_paths_writable_by_others(folder: Path, what: str, how: str) -> None:
    kept = put("libraries/KEY", "deep/libcuda.so.1")
    assert cache.find("libraries/KEY") == kept
    SPOILED.get(how, stranger_owns)(folder / what)
    with pytest.raises(CacheError, match=r"is not used: .*(belongs to user|can write to it).*set VRAMCAST_CACHE"):
        cache.find("libraries/KEY")
    with pytest.raises(CacheError):
        put("libraries/KEY", "deep/libcuda.so.1")


def test_creates_library_folder_for_owner_alone(folder: Path) -> None:
    made = cache.folder("compiled/of/one")
    assert made == folder / "compiled" / "of" / "one"
    assert made.is_dir()
    (made / "theirs").touch()
    (made / "theirs").chmod(0o666)  # the content is the library's own, and not checked
    assert cache.folder("compiled/of/one") == made
    made.parent.chmod(0o777)
    with pytest.raises(CacheError, match="others can write to it"):
        cache.folder("compiled/of/one")


@pytest.mark.parametrize(("mode", "is_taken"), [(0o1777, True), (0o777, False), (0o755, True)])
def test_accepts_sticky_parent_folder(folder: Path, mode: int, is_taken: bool) -> None:
    folder.parent.chmod(mode)
    if is_taken:
        assert cache.cache_folder() == folder
    else:
        with pytest.raises(CacheError, match="any user can replace it"):
            cache.cache_folder()


def test_resolves_relative_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("VRAMCAST_CACHE", "cache")
    assert cache.cache_folder() == folder


def test_names_variable_without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("VRAMCAST_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(CompilerError, match="set VRAMCAST_CACHE"):
        cache.cache_folder()


@pytest.mark.integration
@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022])
def test_kept_files_are_writable_for_owner_alone(folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        put("libraries/KEY", "deep/libcuda.so.1")
        shared_library(compiled.SOURCE)
        assert answers_file() == folder / "cudnn.sqlite"
        assert cache.writable_record("examples.jsonl") == folder / "examples.jsonl"
    finally:
        os.umask(before)
    found = [folder, *folder.rglob("*")]
    assert len(found) == 8
    for path in found:
        mode = path.stat().st_mode
        assert mode & 0o022 == 0, path
        assert mode & 0o044 == 0o044, path
        assert not path.is_dir() or mode & 0o011 == 0o011, path
    assert cache.find("libraries/KEY") is not None


def test_import_root_holds_only_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = import_root()
    assert import_root() == links
    if links.parent.name != "import":
        pytest.skip("vramcast is installed: there are no links")
    (links / "sitecustomize.py").write_text("raise SystemExit('planted')")
    with pytest.raises(CacheError, match="contains more than a link"):
        job_process.python_path()


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_rejects_fetched_cudnn_writable_by_others(folder: Path, mode: int) -> None:
    library = folder / CACHED / "9.10.2.21-cu12" / FOLDER / "libcudnn.so.9"
    put(f"{CACHED}/9.10.2.21-cu12", str(FOLDER / library.name))
    library.chmod(mode)
    if mode == 0o755:
        assert [one.folder for one in cached()] == [library.parent]
    else:
        with pytest.raises(CacheError, match=r"libcudnn\.so\.9 is not used: others can write to it"):
            cached()


# ------------------------------------------------------------------------------------------------ two users
@pytest.mark.integration
@as_root
def test_root_cache_serves_other_users_read_only(folder: Path, tmp_path: Path) -> None:
    put("libraries/KEY", "libcuda.so.1")
    (folder / "private").mkdir(0o700)
    home = folder.parent / "home"
    home.mkdir()
    stranger_owns(home)
    assert as_stranger(lambda: cache.find("libraries/KEY"), home) == folder / "libraries" / "KEY"
    made = as_stranger(lambda: put("libraries/NEW", "libcuda.so.1"), home)
    assert made == home / ".cache" / "vramcast" / "libraries" / "NEW"
    assert as_stranger(lambda: cache.find("libraries/NEW"), home) == made
    # Files readable only for root do not exist for others, who make them again.
    assert as_stranger(lambda: put("private/one"), home) == home / ".cache" / "vramcast" / "private" / "one"
    # Without a home there is no place for a cache.
    assert isinstance(as_stranger(lambda: put("libraries/THIRD", "x"), Path("/root")), CompilerError)
    # Root does not run the other user's files.
    with pytest.raises(CacheError, match=f"belongs to user {STRANGER}"):
        cache._checked(made, home)


@pytest.mark.integration
@as_root
def test_other_user_reads_answers_of_root_and_stores_none(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = answers_file()
    AnswerCache(path).keep_answer(1, "d", "old", "OK 7")

    def asked() -> tuple[Any, ...]:
        answers = AnswerCache(answers_file())
        answers.keep_answer(1, "d", "new", "OK 8")
        return answers_file(), answers.answer(1, "d", "old"), answers.answer(1, "d", "new")

    assert as_stranger(asked, Path("/root")) == (path, "OK 7", None)
    assert AnswerCache(path).answer(1, "d", "new") is None
    assert capfd.readouterr().err == ""


@as_root
@pytest.mark.parametrize("tracer", ["auto", "fake"])
def test_rejects_cache_of_another_user(
    folder: Path, tracer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vramcast.cli.main import main
    from vramcast.tracer.nullgpu.client import NullGpuTracer

    folder.mkdir(0o755)
    stranger_owns(folder)
    monkeypatch.setattr(NullGpuTracer, "_shared", None)
    target = ("torchvision:alexnet", "--batch", "1x3x64x64", "--device", "a100-40gb")
    assert main(["estimate", *target, "--tracer", tracer, "--json"]) == 3
    said = capsys.readouterr()
    assert '"error": "CacheError"' in said.out
    assert f"belongs to user {STRANGER}" in said.err
