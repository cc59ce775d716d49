"""The files of a public repository that a collector reads."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol


class Checkout(Protocol):
    """The files of a repository at its newest commit, and the commits that changed them."""

    commit: str

    def paths(self, folder: str = "") -> list[str]:
        """Return the paths of the files in a folder, sorted."""

    def text(self, path: str, commit: str = "") -> str:
        """Return the text of a file, as of an earlier commit if given; "" if it does not exist there."""

    def changes(self, path: str) -> list[str]:
        """Return the commits that changed a file, newest first."""

    def messages(self) -> Iterator[tuple[str, str]]:
        """Yield each commit with its message, newest first."""


class GitCheckout:
    """A repository on this machine, read with git: it can be bare."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.commit = self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self._folder), *arguments]
        found = subprocess.run(command, capture_output=True, check=False, encoding="utf-8", errors="replace")
        return found.stdout if found.returncode == 0 else ""

    def paths(self, folder: str = "") -> list[str]:
        """Return the paths of the files in a folder, sorted."""
        return sorted(self._git("ls-tree", "-rz", "--name-only", "HEAD", "--", *filter(None, [folder])).split("\0")[:-1])

    def text(self, path: str, commit: str = "") -> str:
        """Return the text of a file, as of an earlier commit if given; "" if it does not exist there."""
        return self._git("show", f"{commit or self.commit}:{path}")

    def changes(self, path: str) -> list[str]:
        """Return the commits that changed a file, newest first."""
        return self._changes.get(path, [])

    def messages(self) -> Iterator[tuple[str, str]]:
        """Yield each commit with its message, newest first."""
        for entry in self._git("log", "-z", "--format=%H%n%B").split("\0"):
            commit, _, message = entry.partition("\n")
            yield commit, message

    @cached_property
    def _changes(self) -> Mapping[str, list[str]]:
        changes: dict[str, list[str]] = defaultdict(list)
        commit = ""
        # One pass over the history: a call for each of a thousand files takes minutes.
        for line in self._git("log", "--format=@%H", "--name-only", "--no-renames").splitlines():
            if line.startswith("@"):
                commit = line[1:]
            elif line:
                changes[line].append(commit)
        return changes
