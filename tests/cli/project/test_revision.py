"""A checkout of another revision: the modules imported from it, and its complete removal."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.cli.project.revision import checked_out
from vramcast.core.errors import UsageError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with two commits of a file in a folder, as the current folder."""
    root = tmp_path / "repository"
    (root / "src").mkdir(parents=True)
    git(root, "init", "--quiet", "-b", "main")
    for text in ("old", "new"):
        (root / "src" / "file.txt").write_text(text)
        git(root, "add", "-A")
        git(root, "commit", "--quiet", "-m", text)
    monkeypatch.chdir(root)
    return root


def test_checkout_has_revision_and_is_removed(repository: Path) -> None:
    with checked_out("main~1") as folder:
        assert Path.cwd() == folder
        assert (folder / "src" / "file.txt").read_text() == "old"
        assert folder != repository
    assert Path.cwd() == repository
    assert not folder.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert (repository / "src" / "file.txt").read_text() == "new"


def test_keeps_subfolder_below_root(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository / "src")
    with checked_out("main~1") as folder:
        assert (folder / "file.txt").read_text() == "old"


def test_imports_from_revision(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = repository / ".venv"
    environment.mkdir()
    before = ["", str(repository), str(repository / "src"), str(environment), "/elsewhere"]
    monkeypatch.setattr(sys, "path", list(before))
    with checked_out("main~1") as folder:
        assert sys.path == ["", str(folder), str(folder / "src"), str(environment), "/elsewhere"]
    assert sys.path == before


def test_removes_checkout_after_error(repository: Path) -> None:
    with pytest.raises(KeyError), checked_out("main~1"):
        raise KeyError
    assert Path.cwd() == repository
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_runs_no_hook_and_ignores_hook_variables(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_INDEX_FILE", "nowhere/index")
    monkeypatch.setenv("GIT_DIR", "nowhere")
    with checked_out("main~1") as folder:
        assert sorted(path.name for path in folder.iterdir()) == [".git", "src"]


@pytest.mark.parametrize("revision", ["absent", "--help", "", "main:src"])
def test_rejects_unknown_revision(repository: Path, revision: str) -> None:
    with pytest.raises(UsageError, match="git fetch origin main"), checked_out(revision):
        pass


def test_rejects_folder_missing_in_revision(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "later").mkdir()
    monkeypatch.chdir(repository / "later")
    with pytest.raises(UsageError, match="'later' is not in main"), checked_out("main"):
        pass
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_rejects_folder_outside_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UsageError), checked_out("main"):
        pass
