"""DIR: an artifact replaces another atomically, and concurrent adoptions exclude each other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("xgboost")

from vramcast.adoption import artifact_store as folders
from vramcast.adoption.artifact_store import Folder, digest_of
from vramcast.core.errors import ArtifactError, OutputError
from vramcast.learner import artifact
from vramcast.learner.conformal import Calibration
from vramcast.learner.model import Head, LearnedModel
from vramcast.learner.stacks import StackContext


def learned(context: int) -> LearnedModel:
    """Return an artifact without trees, identified by its context."""
    card = {"runs": 1, "groups": 1, "censored": 0, "folds": 2, "seed": 0, "parameters": {}, "by": {}}
    head = Head(None, Calibration.empty())
    return LearnedModel(head, contexts={"one": StackContext(context, context, context, 9)}, card=card)


def context_of(path: Path) -> int:
    return artifact.load(path).contexts["one"].size_bytes


def kept(folder: Folder, context: int) -> str:
    return folder.keep(learned(context), f"card {context}")


def test_deploys_and_replaces_artifact(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "site")
    for context in (1, 2, 3, 4, 5):
        digest = kept(folder, context)
        folder.put_in_place(digest)
        assert context_of(folder.path) == context
        assert folder.present_digest() == digest
        assert (folder.path / "CARD.md").read_text() == f"card {context}"
    assert len(list(folder.artifacts.iterdir())) == 3  # the last ones, for a rollback
    assert kept(folder, 5) == digest
    moved = tmp_path / "moved"
    shutil.copytree(folder.path, moved, symlinks=True)
    assert context_of(moved) == 5


def test_plain_artifact_is_readable_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each renaming step there is a readable artifact, either the old or the new one, complete."""
    site = tmp_path / "site"
    artifact.save(learned(1), site, "card 1")
    folder, seen = Folder(site), []

    def watched(change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object, **how: object) -> object:
            found = change(*arguments, **how)
            seen.append((context_of(site), (site / "CARD.md").read_text()))
            return found

        return changed

    digest = kept(folder, 2)
    for name in ("replace", "symlink"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    folder.put_in_place(digest)
    assert set(seen) == {(1, "card 1"), (2, "card 2")}
    assert seen[-1] == (2, "card 2")


def test_reader_sees_files_of_one_artifact(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "site")
    folder.put_in_place(kept(folder, 1))
    place = (folder.path / "artifact.json").resolve().parent
    folder.put_in_place(kept(folder, 2))
    assert context_of(place) == 1
    present = folder.present()
    assert present is not None
    assert present.contexts["one"].size_bytes == 2


@pytest.mark.parametrize("damage", ["cut", "grown", "gone"])
def test_never_deploys_incomplete_artifact(tmp_path: Path, damage: str) -> None:
    folder = Folder(tmp_path / "site")
    folder.put_in_place(kept(folder, 1))
    digest = kept(folder, 2)
    path = folder.artifacts / digest / "artifact.json"
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9] if damage == "cut" else path.read_bytes() + b" ")
    with pytest.raises(ArtifactError, match="is incomplete"):
        folder.put_in_place(digest)
    assert context_of(folder.path) == 1
    assert kept(folder, 2) == digest  # a damaged artifact is made again
    folder.put_in_place(digest)
    assert context_of(folder.path) == 2


def test_full_disk_keeps_current_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path / "site")
    folder.put_in_place(kept(folder, 1))

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "_sync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        kept(folder, 2)
    monkeypatch.undo()
    digest = kept(folder, 3)
    monkeypatch.setattr(os, "symlink", full)
    with pytest.raises(OutputError, match="No space left"):
        folder.put_in_place(digest)
    assert context_of(folder.path) == 1
    assert digest_of(folder.artifacts / folder.present_digest()) == folder.present_digest()


def test_rejects_second_adoption_and_frees_dead_lock(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "site")
    with folder.locked(), pytest.raises(OutputError, match=f"Process {os.getpid()} on .* is adopting into"), folder.locked():
        pass
    (folder.adopted / "lock").write_text("1 on a machine that is gone\n")
    with folder.locked():
        assert (folder.adopted / "lock").read_text().startswith(str(os.getpid()))


def test_rejects_foreign_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot be used"):
        Folder(tmp_path / "file")
    with pytest.raises(ArtifactError, match="is not empty and not an artifact"):
        Folder(tmp_path)
    (tmp_path / "empty").mkdir()
    assert Folder(tmp_path / "empty").present() is None
