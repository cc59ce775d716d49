"""Programs of a shell script that affect neither the card nor the files that the job reads."""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from vramcast.cluster.shell.grammar import not_understood
from vramcast.jobs.commands.wrappers import WORDS

if TYPE_CHECKING:
    from tree_sitter import Node

_HARMLESS: Final = frozenset(WORDS["harmless"]["programs"])
_WRITERS: Final = frozenset(WORDS["harmless"]["writers"])
_WITH: Final[dict[str, list[str]]] = WORDS["harmless"]["with"]
_MODULES: Final = frozenset(WORDS["harmless"]["modules"]["python"])
_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?t?")
# Files that a job may read: if the script writes one, it differs from the one sent with the job.
_READ_BY_JOBS: Final = (".py", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".conf", ".env", ".sh", ".bash", ".pth")
# Words with which programs run a command or write another file.
_UNLESS: Final[dict[str, str]] = WORDS["harmless"]["unless"]
# A script of sed that runs no command and writes no file. spec: GNU sed 4.9
_ADDRESS: Final = r"(?:(?:[0-9]+(?:~[0-9]+)?|\$|/(?:\\.|[^/\\])*/)[IM]?)"
_COMMAND: Final = r"(?:[pPdDqQ=hHgGxnNlz]|[aic][^\n]*|([sy])([^\\\n])(?:(?:\\.|(?!\2)[^\\])*\2){2}[gpIiMm0-9]*)"
_SED: Final = re.compile(rf"\s*(?:(?:{_ADDRESS}(?:,{_ADDRESS})?\s*!?)?\s*{_COMMAND}\s*(?:[;\n]\s*|$))*", re.DOTALL)
_SED_OPTION: Final = re.compile(r"-[nErsuz]*e?|-i[^e]*|--(quiet|silent|regexp-extended|in-place[^e]*|expression)")
_OF_A_RUN: Final = "it is known only when the job runs"


@dataclass(frozen=True, slots=True)
class Unread:
    """The source text of one or several words that are known only when the job runs."""

    text: str


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple command with expanded words.

    Attributes:
        node: Its node in the syntax tree.
        words: Its words.
        assigned: The variables assigned before it; None if known only when the job runs.
    """

    node: Node
    words: tuple[str | Unread, ...]
    assigned: Mapping[str, str | None] = field(default_factory=dict)

    def known(self) -> tuple[str, ...]:
        """Return the words.

        Raises:
            NotUnderstood: A word is known only when the job runs.
        """
        found = tuple(word for word in self.words if isinstance(word, str))
        if len(found) < len(self.words):
            raise not_understood(self.node, _OF_A_RUN)
        return found


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The code and the configs of a job.

    Attributes:
        base: The job's folder as the script sees it.
        texts: Text of each file by path within the folder.
    """

    base: str
    texts: Mapping[str, str]

    def inside(self, path: str) -> str | None:
        """Return a path relative to the job's folder; None if it is outside."""
        found = posixpath.relpath(posixpath.normpath(path), self.base)
        return None if found == ".." or found.startswith("../") else found

    def text(self, word: str, folder: str | None) -> str | None:
        """Return the text of the file that a word names in a folder; None if the file was not sent."""
        path = self.inside(posixpath.join(folder, word)) if folder is not None else None
        return None if path is None else self.texts.get(path)

    def is_read_by_jobs(self, word: str, folder: str | None) -> bool:
        """Return whether a word may name a file that the job reads, by its path or its extension."""
        if word.startswith("-") and len(word) > 2:
            word = word.rpartition("=")[2] if word.startswith("--") else word[2:]
        if word.rstrip("\"'").endswith(_READ_BY_JOBS):
            return True
        path = self.inside(posixpath.join(folder, word)) if folder is not None else word
        if path is None:
            return False
        return path == "." or any(
            name.startswith(f"{path}/") or any(fnmatch(str(one), path) for one in (name, *PurePosixPath(name).parents))
            for name in self.texts
        )


def is_harmless(simple: Simple, files: JobFiles, folder: str | None) -> bool:
    """Return whether a program uses no GPU, and changes no file that the job reads.

    Raises:
        NotUnderstood: It may change such a file.
    """
    first, *rest = simple.words
    if isinstance(first, Unread) or (os.sep in first and not _is_of_the_system(first, files)):
        return False
    name = os.path.basename(first)
    said = [word.text if isinstance(word, Unread) else word for word in rest]
    if name in _WRITERS and any(files.is_read_by_jobs(word.rpartition("=")[2], folder) for word in said):
        raise not_understood(simple.node, "it may change a file that the job reads")
    if name == "sed":
        return _edits_text(said)
    if any(re.search(_UNLESS.get(name, "$^"), word) for word in said):
        return False
    if name == "command":
        return said[:1] in (["-v"], ["-V"])
    if name in ("exec", "env"):
        return not rest
    if _PYTHON.fullmatch(name):
        return said in (["--version"], ["-V"]) or (said[:1] == ["-m"] and len(said) > 1 and said[1] in _MODULES)
    return name in _HARMLESS or name in _WRITERS or (name in _WITH and bool(said) and said[0] in _WITH[name])


def _edits_text(words: list[str]) -> bool:
    """Return whether the scripts among the words of `sed` neither run commands nor write files."""
    options = [word for word in words if word.startswith("-")]
    operands = [word for word in words if word not in options]
    behind = [word for before, word in itertools.pairwise(words) if re.fullmatch(r"-\w*e|--expression", before)]
    scripts = behind or operands[:1]
    return all(map(_SED_OPTION.fullmatch, options)) and all(map(_SED.fullmatch, scripts))


def _is_of_the_system(path: str, files: JobFiles) -> bool:
    return path.startswith("/") and files.inside(path) is None
