"""`vramcast learn`: from the files of a history to the deployed artifact, repeatedly."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgboost")

from tests.adoption.conftest import COLUMNS
from tests.cli.conftest import validator
from vramcast.adoption import pipeline, shipped_artifact
from vramcast.adoption.artifact_store import Folder, digest_of
from vramcast.cli import column_questions
from vramcast.cli.main import main
from vramcast.datasets.journal import read_runs
from vramcast.estimates import run_examples
from vramcast.jobs.job import Job
from vramcast.learner import artifact
from vramcast.learner.residual import ResidualQuantiles

History = Callable[..., str]
SCHEMA = validator("adopt")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use only a few trees, because these tests ignore their predictions."""
    monkeypatch.setattr(pipeline.AdoptOptions, "parameters", lambda self, rows: {"n_estimators": 4})


def adopted(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run the verb and return its JSON."""
    capsys.readouterr()
    assert main(["learn", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    wrong = [f"{error.json_path}: {error.message}" for error in SCHEMA.iter_errors(found)]
    assert not wrong
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """Run the verb, which must fail, and return the error."""
    capsys.readouterr()
    assert main(["learn", *arguments]) == code
    said = capsys.readouterr().err.splitlines()[-1]
    assert "This error is unexpected" not in said
    return said


@pytest.mark.usefixtures("asked")
def test_calibrates_only_the_bounds(tmp_path: Path, history: History, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "site")
    facts = adopted(capsys, history("first.csv", 60), "--out", out, "--calibrate-only", "--keep", "new")
    found = Folder(out).present()
    assert (facts["promoted"], found is not None) == (True, True)
    assert found is not None
    assert found.card["calibrated_on"] == {"runs": 60, "groups": 8}
    assert found.card["runs"] == shipped_artifact.load().card["runs"]  # those of the trees


@pytest.mark.usefixtures("asked")
def test_former_name_does_the_same(tmp_path: Path, history: History, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", history("first.csv", 10), "--out", str(tmp_path / "site"), "--dry-run", "-q"]) in (0, 1)
    said = capsys.readouterr()
    assert said.out.startswith("10 runs, 10 of them new")
    assert said.err == ""


def test_estimates_only_new_jobs_next_night(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "site")
    first = history("first.csv", 60)
    facts = adopted(capsys, first, "--out", out)
    assert (facts["promoted"], facts["runs"], facts["examples"], facts["reasons"]) == (True, 60, 60, [])
    assert len(asked) == 8
    folder = Folder(out)
    assert folder.present() is not None
    assert folder.last() == facts
    page = folder.report.read_text()
    assert "Cost of request policies" in page
    assert "<svg" in page
    assert "By calibrated group: the 1 largest of 1" in page
    assert facts["requests"]["policies"]["the whole card"]["requested_gib_hours"] == 60 * 80

    before = {path: path.read_bytes() for path in folder.adopted.glob("*.*")}
    assert adopted(capsys, first, "--out", out)["nothing_new"]
    assert {path: path.read_bytes() for path in folder.adopted.glob("*.*")} == before

    same = history("copy.csv", 60)
    Path(same).write_text(Path(same).read_text() + "\n")  # other bytes, the same runs
    assert adopted(capsys, first, same, "--out", out)["nothing_new"]

    more = history("more.csv", 80, models=10)
    facts = adopted(capsys, first, more, "--out", out)
    assert not facts["nothing_new"]
    assert facts["runs"] == 80
    assert len(asked) == 10
    assert len(read_runs(folder.store).runs) == 80
    assert facts["gate"]["known"]["models"] == 8
    assert facts["gate"]["new"]["models"] == 2


def test_artifact_is_reproducible_in_any_order(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    halves = [history("a.csv", 30), history("b.csv", 30, first=30, seed=1)]
    adopted(capsys, *halves, "--out", str(tmp_path / "one" / "site"))
    adopted(capsys, *reversed(halves), "--out", str(tmp_path / "two" / "site"))
    assert digest_of(tmp_path / "one" / "site") == digest_of(tmp_path / "two" / "site")


def test_rejects_worse_artifact_and_keeps_current(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    """The second night's peaks are in another unit."""
    out = str(tmp_path / "site")
    adopted(capsys, history("good.csv", 72, models=12), "--out", out)
    before = digest_of(tmp_path / "site")
    wrong = history("wrong.csv", 48, models=12, factor=1.6, first=1000)
    facts = adopted(capsys, wrong, "--out", out, code=1)
    assert not facts["promoted"]
    assert any("quantile loss" in reason for reason in facts["reasons"])
    assert digest_of(tmp_path / "site") == before
    assert [folder.name for folder in Folder(out).artifacts.iterdir()] == [before]  # one per night would fill the disk
    assert adopted(capsys, wrong, "--out", out)["nothing_new"]
    facts = adopted(capsys, wrong, "--out", out, "--replace")
    assert facts["promoted"]
    assert facts["gate"]["replaced_though"]
    assert digest_of(tmp_path / "site") != before


def test_must_beat_both_current_and_other(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "site")
    adopted(capsys, history("good.csv", 72, models=12), "--out", out)
    wrong = history("wrong.csv", 48, models=12, factor=1.6, first=1000)
    adopted(capsys, wrong, "--out", str(tmp_path / "bad"), "--keep", "new")
    facts = adopted(capsys, wrong, "--out", out, "--against", str(tmp_path / "bad"), code=1)
    assert any("current artifact was made from" in reason for reason in facts["reasons"])


def test_rejects_artifact_of_fewer_models(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package is missing tonight: the rest of the history would make an artifact of fewer models."""
    out = str(tmp_path / "site")
    adopted(capsys, history("first.csv", 60), "--out", out)
    whole = run_examples.simulated
    monkeypatch.setattr(run_examples, "_versions", lambda: ("timm -",))
    monkeypatch.setattr(run_examples, "simulated", lambda job: "wrong job" if "model3" in (job.target or "") else whole(job))
    facts = adopted(capsys, history("more.csv", 90), "--out", out, code=1)
    assert any("1 of the 8 models of the current artifact cannot be evaluated now" in reason for reason in facts["reasons"])


def test_keeps_artifact_after_rollback(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, first = Folder(tmp_path / "site"), history("first.csv", 60)
    adopted(capsys, first, "--out", str(folder.path))
    old = folder.present_digest()
    adopted(capsys, history("more.csv", 90, models=9), "--out", str(folder.path))
    folder.current.unlink()
    folder.current.symlink_to(f"artifacts/{old}")
    assert adopted(capsys, first, "--out", str(folder.path))["nothing_new"]
    assert folder.present_digest() == old


def test_tolerates_wrong_units(tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    first = Path(history("first.csv", 60))
    lines = first.read_text().splitlines()
    large, long = lines[5].split(","), lines[6].split(",")
    large[COLUMNS.index("process_bytes")], long[COLUMNS.index("seconds")] = str(10**17), "1e308"
    first.write_text("\n".join([*lines[:5], ",".join(large), ",".join(long), *lines[7:]]) + "\n")
    facts = adopted(capsys, str(first), "--out", str(tmp_path / "site"))
    assert facts["left_out"] == {"its peak is above what its card has": 1}
    assert facts["requests"]["left_out"] == {"their duration is not known": 1}


def test_dry_run_writes_nothing(tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    out, first = str(tmp_path / "site"), history("first.csv", 60)
    facts = adopted(capsys, first, "--out", out, "--dry-run", "--against", "default")
    assert facts["dry_run"]
    assert not facts["promoted"]
    assert facts["gate"]["against"]["models"] == 8
    assert facts["gate"]["present"] == "there is none"
    assert not (tmp_path / "site").exists()
    assert "--against" not in refused(capsys, first, "--out", out, "--against", str(tmp_path / "absent"))


def test_remembers_jobs_that_cannot_be_estimated(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    out, first = str(tmp_path / "site"), Path(history("first.csv", 60))
    first.write_text(first.read_text().replace("torchvision:model7", "torchvision:broken"))
    assert adopted(capsys, str(first), "--out", out)["left_out"] == {"cannot be estimated: JobError": 7}
    more = history("more.csv", 61, models=7)
    assert adopted(capsys, str(first), more, "--out", out)["left_out"] == {}  # of equal ids the row in the last file counts
    assert len(asked) == 8
    seeded = adopted(capsys, str(first), "--out", out, "--seed", "1")
    assert seeded["left_out"] == {"cannot be estimated: JobError": 7} or seeded["runs"] == 61
    assert len(asked) == 8


def test_person_maps_columns_on_a_terminal(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(history("first.csv", 60))
    first.write_text(first.read_text().replace("process_bytes", "Höchster Speicher", 1))
    out = ["--out", str(tmp_path / "site")]
    assert "--columns 'peak_mib=COLUMN'" in refused(capsys, str(first), *out)
    monkeypatch.setattr(column_questions, "is_interactive", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("Höchster Speicher\n\n"))
    assert adopted(capsys, str(first), *out, "--dry-run")["runs"] == 60
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "no column" in refused(capsys, str(first), *out)  # no answer


def test_omits_rows_with_untrusted_code(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    first = Path(history("first.csv", 60))
    first.write_text(first.read_text().replace("torchvision:model7", "os:system"))
    facts = adopted(capsys, str(first), "--out", str(tmp_path / "site"))
    assert facts["left_out"] == {"its target is code: pass --trust-targets": 7}
    assert all(job.target != "os:system" for job in asked)
    again = [str(first), "--out", str(tmp_path / "site"), "--trust-targets", "--replace"]
    assert adopted(capsys, *again)["left_out"] == {}
    assert any(job.target == "os:system" for job in asked)


# ------------------------------------------------------------------------------------------------ failures
def test_reports_unusable_inputs(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "site")]
    good = history("good.csv", 60)
    assert "cannot be read" in refused(capsys, str(tmp_path / "absent.csv"), *out)
    assert "can be read as sacct" in refused(capsys, good, "--format", "sacct", *out)
    assert "The 1 files contain no run" in refused(capsys, history("header.csv", 0), *out)
    (tmp_path / "empty.csv").write_text("")
    assert "is empty" in refused(capsys, str(tmp_path / "empty.csv"), *out)
    (tmp_path / "odd").write_text("hello\n")
    assert "--format" in refused(capsys, str(tmp_path / "odd"), *out)
    unusable = Path(history("unusable.csv", 30))
    unusable.write_text(unusable.read_text().replace(",ok,", ",killed,"))
    assert "None of 30 runs can be learned from: 30 status killed" in refused(capsys, str(unusable), *out)
    assert "models are too few" in refused(capsys, history("one.csv", 9, models=1), *out[:1], str(tmp_path / "other"))
    assert refused(capsys, good, "--out", good).endswith("give an artifact's folder, or a new name.")
    assert "is not empty and not an artifact" in refused(capsys, good, "--out", str(tmp_path))
    assert not (tmp_path / "site" / "artifact.json").exists()


def test_full_disk_keeps_current_artifact(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "site")
    adopted(capsys, history("first.csv", 60), "--out", out)
    before = digest_of(tmp_path / "site")
    more = history("more.csv", 90, models=9)
    with monkeypatch.context() as patch:
        patch.setattr(artifact, "save", _full)
        assert "No space left" in refused(capsys, more, "--out", out, code=3)
    assert digest_of(tmp_path / "site") == before
    assert adopted(capsys, more, "--out", out)["promoted"]  # and the next night continues


def _full(*arguments: object, **how: object) -> None:
    raise OSError(28, "No space left on device", "artifact.json")


def test_completes_interrupted_adoption(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, first = str(tmp_path / "site"), history("first.csv", 60)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "put_in_place", _full)
        refused(capsys, first, "--out", out, code=3)
    assert Folder(out).present() is None
    trained = []
    monkeypatch.setattr(ResidualQuantiles, "fit", lambda *arguments, **how: trained.append(1))
    facts = adopted(capsys, first, "--out", out)
    assert facts["nothing_new"]
    assert not trained
    assert Folder(out).present_digest() == facts["artifact"]


def test_rejects_artifact_changed_by_writing(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "site")
    adopted(capsys, history("first.csv", 60), "--out", out)
    before, load = digest_of(tmp_path / "site"), Folder.kept

    def other(folder: Folder, digest: str) -> artifact.LearnedModel:
        found = load(folder, digest)
        found.contexts = {}
        return found

    monkeypatch.setattr(Folder, "kept", other)
    facts = adopted(capsys, history("more.csv", 90, models=9), "--out", out, code=1)
    assert facts["reasons"]
    assert digest_of(tmp_path / "site") == before


def test_concurrent_adoptions_exclude_each_other(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    first = history("first.csv", 60)
    with Folder(tmp_path / "site").locked():
        assert "is adopting into" in refused(capsys, first, "--out", str(tmp_path / "site"), code=3)
