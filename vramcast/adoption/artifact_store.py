"""DIR, which holds an artifact and the data it was made from.

    DIR/artifact.json, reserved.json, process.json, CARD.md      links to adopted/current/...
    DIR/adopted/current                                          a link to one of artifacts/
    DIR/adopted/artifacts/DIGEST/                                artifacts, each named by the digest of its content
    DIR/adopted/runs.jsonl                                       the runs of all histories, an append-only journal
    DIR/adopted/rejected.jsonl                                   rows of the last adoption that could not be read
    DIR/adopted/examples.jsonl, refusals.jsonl                   jobs that were estimated, and those that could not be
    DIR/adopted/adopted.json, report.html                        results of the last adoption
    DIR/adopted/placed                                           the artifact deployed last
    DIR/adopted/lock                                             the process that is adopting

An artifact is deployed by a single rename of the link `current`. Its folder is named by the digest of its content, so that
a partial folder never has that name. The kernel holds the lock, and releases it if the process dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import ArtifactError, OutputError
from vramcast.core.files import atomic_write
from vramcast.learner import artifact
from vramcast.learner.model import LearnedModel

# spec: the files that `learner.artifact.save` writes; model.json holds the trees in the first schema. Readers start with
# the first.
FILES: Final = ("artifact.json", "reserved.json", "process.json", "model.json", "CARD.md")
_KEPT: Final = 3  # arbitrary: number of artifacts kept, including the current one: an older one allows a rollback
_DIGITS: Final = 16  # arbitrary: digits of a digest


class Folder:
    """The folder DIR.

    Args:
        path: May be absent, empty, hold an artifact, or an earlier adoption.
    Raises:
        ArtifactError: It is a file, or holds something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.adopted = self.path / "adopted"
        self.store = self.adopted / "runs.jsonl"
        self.rejected = self.adopted / "rejected.jsonl"
        self.examples = self.adopted / "examples.jsonl"
        self.report = self.adopted / "report.html"
        self.facts = self.adopted / "adopted.json"
        self.current = self.adopted / "current"
        self.placed = self.adopted / "placed"
        self.artifacts = self.adopted / "artifacts"
        try:
            names = set(os.listdir(self.path)) if os.path.lexists(self.path) else set()
        except OSError as error:
            raise ArtifactError(
                f"--out '{path}' cannot be used ({error.strerror}): give an artifact's folder, or a new name."
            ) from None
        if names and not names & {"artifact.json", self.adopted.name}:
            raise ArtifactError(f"'{path}' is not empty and not an artifact: choose another --out.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock DIR while the block runs.

        Raises:
            OutputError: Another process adopts into it, or it cannot be written.
        """
        lock = self.adopted / "lock"
        try:
            self.adopted.mkdir(parents=True, exist_ok=True)
            fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise OutputError(f"'{self.path}' cannot be written ({error.strerror}): choose another --out.") from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.pread(fd, 100, 0).decode(errors="replace").strip() or "unknown"
                raise OutputError(f"Process {holder} is adopting into '{self.path}': wait until it has finished.") from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()} on {os.uname().nodename}\n".encode(), 0)
            yield
        finally:
            os.close(fd)

    # -------------------------------------------------------------------------------------------- facts
    def last(self) -> dict[str, Any]:
        """Return the facts of the last adoption; {} if there was none, or they cannot be read."""
        try:
            found = json.loads(self.facts.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, path: Path, content: bytes) -> None:
        """Write a file of this folder atomically.

        Raises:
            OutputError: It cannot be written.
        """
        with atomic_write(path) as file:
            file.write(content)

    # -------------------------------------------------------------------------------------------- artifacts
    def present(self) -> LearnedModel | None:
        """Return the current artifact; None: there is none.

        Raises:
            ArtifactError: It cannot be read.
        """
        path = self.path / "artifact.json"
        # Read all files from one folder, even if another artifact replaces it meanwhile.
        return artifact.load(path.resolve().parent) if os.path.lexists(path) else None

    def present_digest(self) -> str:
        """Return the name of the current artifact; "": there is none, or it was not adopted."""
        return os.path.basename(os.readlink(self.current)) if self.current.is_symlink() else ""

    def last_placed(self) -> str:
        """Return the name of the artifact deployed last; a user may have gone back to another one since."""
        try:
            return self.placed.read_text(errors="replace").strip()
        except OSError:
            return ""

    def drop(self, digest: str) -> None:
        """Delete an artifact that was not deployed; the current one stays."""
        if digest != self.present_digest():
            shutil.rmtree(self.artifacts / digest, ignore_errors=True)

    def keep(self, learned: LearnedModel, card_text: str) -> str:
        """Write an artifact next to the current one and return its digest.

        Raises:
            ArtifactError: It cannot be written, or could not be read back.
        """
        made = self.artifacts / f"new-{uuid.uuid4().hex}"
        try:
            artifact.save(learned, made, card_text)
            return self._named(made)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _named(self, made: Path) -> str:
        """Rename a folder to the digest of its content."""
        digest = digest_of(made)
        with _written(self.path):
            for path in made.iterdir():
                _sync(path)
            if not self.is_whole(digest):
                shutil.rmtree(self.artifacts / digest, ignore_errors=True)
                os.replace(made, self.artifacts / digest)
                _sync(self.artifacts)
        return digest

    def is_whole(self, digest: str) -> bool:
        """Return whether the artifact of this name is complete."""
        folder = self.artifacts / digest
        return bool(digest) and folder.is_dir() and digest_of(folder) == digest

    def judged(self, digest: str) -> Path:
        """Return the file with an artifact's evaluation at its adoption."""
        return self.artifacts / digest / "judged.json"

    def kept(self, digest: str) -> LearnedModel:
        """Return an artifact of this folder.

        Raises:
            ArtifactError: It cannot be read.
        """
        return artifact.load(self.artifacts / digest)

    def put_in_place(self, digest: str) -> None:
        """Deploy the artifact of this name atomically, completing an earlier interrupted attempt.

        Raises:
            ArtifactError: It is incomplete.
            OutputError: The folder cannot be written.
        """
        if not self.is_whole(digest):
            raise ArtifactError(f"'{self.artifacts / digest}' is incomplete: run vramcast learn again.")
        with _written(self.path):
            if not self.current.is_symlink() and (self.path / "artifact.json").is_file():
                self._take_in()
            had = self.present_digest()
            self._show(digest)
            self._tidy({digest, had})
        self.write(self.placed, f"{digest}\n".encode())

    def _take_in(self) -> None:
        """Make `current` point to a copy of DIR's own files before they become links, so that readers see no difference."""
        copy = self.artifacts / f"new-{uuid.uuid4().hex}"
        copy.mkdir(parents=True)
        try:
            for name in FILES:
                if (self.path / name).is_file():
                    shutil.copyfile(self.path / name, copy / name)
            digest = self._named(copy)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        self._show(digest)

    def _show(self, digest: str) -> None:
        """Make DIR's files those of this artifact: links through `current`, so that one rename changes all of them."""
        has = [name for name in FILES if (self.artifacts / digest / name).exists()]
        links = {name: f"{self.adopted.name}/{self.current.name}/{name}" for name in has}
        if not (self.path / FILES[0]).is_file() or self.current.is_symlink():  # else the links would be broken meanwhile
            for name in has[1:]:
                _link(links[name], self.path / name)
        _link(f"artifacts/{digest}", self.current)
        _sync(self.adopted)
        for name in reversed(has):
            _link(links[name], self.path / name)
        for name in FILES:
            if name not in has:
                (self.path / name).unlink(missing_ok=True)

    def _tidy(self, wanted: set[str]) -> None:
        """Delete all artifacts but the newest, and unfinished ones."""
        by_age = sorted(self.artifacts.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
        whole = [folder for folder in by_age if not folder.name.startswith(("new-", "."))]
        for folder in by_age:
            if folder.name not in wanted and folder not in whole[:_KEPT]:
                shutil.rmtree(folder, ignore_errors=True)


def digest_of(folder: Path) -> str:
    """Return the digest of an artifact's content."""
    found = hashlib.sha256()
    for name in FILES:
        path = folder / name
        if path.is_file():
            found.update(f"{name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()[:_DIGITS]


def as_json(values: Mapping[str, Any]) -> bytes:
    """Return facts as JSON that people can read too."""
    return json.dumps(values, indent=1, allow_nan=False).encode() + b"\n"


def _link(to: str, at: Path) -> None:
    """Make `at` a link atomically, replacing any file or link."""
    if at.is_symlink() and os.readlink(at) == to:
        return
    fresh = at.with_name(f".{at.name}.{uuid.uuid4().hex}.tmp")
    os.symlink(to, fresh)
    try:
        os.replace(fresh, at)
    finally:
        with suppress(FileNotFoundError):
            fresh.unlink()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"'{path}' cannot be written ({error.strerror}): the current artifact stays. Check the disk and "
            "the folder's permissions."
        ) from None
