"""Temporary checkouts of another revision of the repository in the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Final

from vramcast.core.errors import UsageError

_GIT_S: Final = 600.0  # arbitrary: a checkout of a large repository takes minutes


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Change to the current folder as it is in a revision, while the block runs.

    The checkout is a git worktree in a temporary folder, without untracked files and without submodules. Entries of
    `sys.path` in the repository become those of the worktree, so that a package installed from it (`pip install -e .`) is
    the revision's.

    Args:
        revision: Any name of a revision in git: `origin/main`, `HEAD~1`, a tag.
    Raises:
        UsageError: git is not installed, the folder is in no repository, or the revision, or the folder in it, does not
            exist.
    """
    unknown = (
        f"'{revision}' is not a revision of the git repository in this folder: give a branch, tag or commit that has been "
        "fetched (git fetch origin main; then origin/main)."
    )
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", why=unknown)
    root = Path(_git("rev-parse", "--show-toplevel")).resolve()
    inside = Path.cwd().resolve().relative_to(root)
    with tempfile.TemporaryDirectory(prefix="vramcast-") as folder:
        tree = Path(folder).resolve() / root.name  # the same name: a package may be named after the folder
        # No hook of the repository runs: hooks are written for the user's own checkout.
        _git("-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--detach", "--quiet", str(tree), commit)
        try:
            if not (tree / inside).is_dir():
                raise UsageError(f"'{inside}' is not in {revision}: compare with a revision that has this folder.")
            with _import_path(root, tree), chdir(tree / inside):
                yield tree / inside
        finally:
            _git("worktree", "remove", "--force", str(tree))


@contextmanager
def _import_path(root: Path, tree: Path) -> Iterator[None]:
    """Import from the worktree what would be imported from the repository."""
    before = list(sys.path)
    sys.path[:] = [_moved(entry, root, tree) for entry in before]
    try:
        yield
    finally:
        sys.path[:] = before


def _moved(entry: str, root: Path, tree: Path) -> str:
    path = Path(entry).resolve() if entry else root
    if not entry or not path.is_relative_to(root):
        return entry
    there = tree / path.relative_to(root)
    return str(there) if there.is_dir() else entry  # a virtual environment in the repository stays


def _git(*words: str, why: str = "") -> str:
    """Return the output of git.

    Raises:
        UsageError: git is not installed, or fails; `why` replaces git's message.
    """
    # Inside a hook, git's variables name the repository's index and folder instead of the worktree's.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        found = subprocess.run(["git", *words], capture_output=True, text=True, env=environment, timeout=_GIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"git cannot be run ({error}): install it, or give the results of the other revision with --base FILE."
        ) from None
    if found.returncode:
        said = " ".join(found.stderr.split()) or f"exit code {found.returncode}"
        raise UsageError(
            why or f"git {words[0]} failed: {said}. Fix this, or give the results of the other revision with --base FILE."
        )
    return found.stdout.strip()
