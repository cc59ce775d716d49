"""`vramcast adopt`: from the files of a history to the artifact in place, again and again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgboost")

from tests.adoption.conftest import COLUMNS
from vramcast.adoption import pipeline
from vramcast.adoption.artifact_store import Folder, digest_of
from vramcast.cli.main import main
from vramcast.datasets.journal import read_runs
from vramcast.estimates import run_examples
from vramcast.jobs.job import Job
from vramcast.learner import artifact
from vramcast.learner.residual import ResidualQuantiles

History = Callable[..., str]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few trees: what they learn is not looked at here."""
    monkeypatch.setattr(pipeline.AdoptOptions, "parameters", lambda self, rows: {"n_estimators": 4})


def adopted(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run the verb and return its JSON."""
    capsys.readouterr()
    assert main(["adopt", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """Run the verb, which ends with an error, and return that."""
    capsys.readouterr()
    assert main(["adopt", *arguments]) == code
    said = capsys.readouterr().err.splitlines()[-1]
    assert "This error is unexpected" not in said
    return said


def test_a_history_becomes_an_artifact_and_the_next_night_only_what_is_new_is_estimated(
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


def test_the_same_runs_and_seed_give_the_same_bytes_whatever_the_order(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    halves = [history("a.csv", 30), history("b.csv", 30, first=30, seed=1)]
    adopted(capsys, *halves, "--out", str(tmp_path / "one" / "site"))
    adopted(capsys, *reversed(halves), "--out", str(tmp_path / "two" / "site"))
    assert digest_of(tmp_path / "one" / "site") == digest_of(tmp_path / "two" / "site")


def test_a_worse_candidate_is_refused_and_the_present_one_stays(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    """The second night's rows have their peaks in another unit."""
    out = str(tmp_path / "site")
    adopted(capsys, history("good.csv", 72, models=12), "--out", out)
    before = digest_of(tmp_path / "site")
    wrong = history("wrong.csv", 48, models=12, factor=1.6, first=1000)
    facts = adopted(capsys, wrong, "--out", out, code=1)
    assert not facts["promoted"]
    assert any("quantile loss" in reason for reason in facts["reasons"])
    assert digest_of(tmp_path / "site") == before
    assert [folder.name for folder in Folder(out).artifacts.iterdir()] == [before]  # one a night would fill the disk
    assert adopted(capsys, wrong, "--out", out)["nothing_new"]
    facts = adopted(capsys, wrong, "--out", out, "--replace")
    assert facts["promoted"]
    assert facts["gate"]["replaced_though"]
    assert digest_of(tmp_path / "site") != before


def test_beside_another_artifact_it_may_not_be_worse_than_the_present_one_either(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "site")
    adopted(capsys, history("good.csv", 72, models=12), "--out", out)
    wrong = history("wrong.csv", 48, models=12, factor=1.6, first=1000)
    adopted(capsys, wrong, "--out", str(tmp_path / "bad"))
    facts = adopted(capsys, wrong, "--out", out, "--against", str(tmp_path / "bad"), code=1)
    assert any("current artifact was made from" in reason for reason in facts["reasons"])


def test_models_which_cannot_be_estimated_any_more_are_no_progress(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package is missing tonight: what is left of the history would make an artifact which knows less."""
    out = str(tmp_path / "site")
    adopted(capsys, history("first.csv", 60), "--out", out)
    whole = run_examples.simulated
    monkeypatch.setattr(run_examples, "_versions", lambda: ("timm -",))
    monkeypatch.setattr(run_examples, "simulated", lambda job: "wrong job" if "model3" in (job.target or "") else whole(job))
    facts = adopted(capsys, history("more.csv", 90), "--out", out, code=1)
    assert any("1 of the 8 models of the current artifact cannot be evaluated now" in reason for reason in facts["reasons"])


def test_who_went_back_to_the_artifact_before_keeps_it(
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


def test_peaks_and_durations_in_a_wrong_unit_stop_nobody(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    first = Path(history("first.csv", 60))
    lines = first.read_text().splitlines()
    large, long = lines[5].split(","), lines[6].split(",")
    large[COLUMNS.index("process_bytes")], long[COLUMNS.index("seconds")] = str(10**17), "1e308"
    first.write_text("\n".join([*lines[:5], ",".join(large), ",".join(long), *lines[7:]]) + "\n")
    facts = adopted(capsys, str(first), "--out", str(tmp_path / "site"))
    assert facts["left_out"] == {"its peak is above what its card has": 1}
    assert facts["requests"]["left_out"] == {"their duration is not known": 1}


def test_a_dry_run_writes_nothing_and_another_artifact_can_be_the_measure(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    out, first = str(tmp_path / "site"), history("first.csv", 60)
    facts = adopted(capsys, first, "--out", out, "--dry-run", "--against", "default")
    assert facts["dry_run"]
    assert not facts["promoted"]
    assert facts["gate"]["against"]["models"] == 8
    assert facts["gate"]["present"] == "there is none"
    assert not (tmp_path / "site").exists()
    assert "--against" not in refused(capsys, first, "--out", out, "--against", str(tmp_path / "absent"))


def test_jobs_which_cannot_be_estimated_are_not_tried_each_night(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    out, first = str(tmp_path / "site"), Path(history("first.csv", 60))
    first.write_text(first.read_text().replace("torchvision:model7", "torchvision:broken"))
    assert adopted(capsys, str(first), "--out", out)["left_out"] == {"cannot be estimated: JobError": 7}
    more = history("more.csv", 61, models=7)
    assert adopted(capsys, str(first), more, "--out", out)["left_out"] == {}  # of equal ids the last file's row holds
    assert len(asked) == 8
    seeded = adopted(capsys, str(first), "--out", out, "--seed", "1")
    assert seeded["left_out"] == {"cannot be estimated: JobError": 7} or seeded["runs"] == 61
    assert len(asked) == 8


def test_rows_which_name_code_are_left_out_unless_they_are_trusted(
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


# ------------------------------------------------------------------------------------------------ what may go wrong
def test_what_cannot_be_read_or_used_is_told(
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


def test_a_full_disk_ends_it_and_what_was_in_place_stays(
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
    assert adopted(capsys, more, "--out", out)["promoted"]  # and the next night goes on


def _full(*arguments: object, **how: object) -> None:
    raise OSError(28, "No space left on device", "artifact.json")


def test_an_adoption_which_died_before_the_last_step_is_finished(
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


def test_a_candidate_which_changes_when_it_is_written_is_refused(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "site")
    adopted(capsys, history("first.csv", 60), "--out", out)
    before, load = digest_of(tmp_path / "site"), Folder.kept

    def other(folder: Folder, digest: str) -> artifact.Learned:
        found = load(folder, digest)
        found.contexts = {}
        return found

    monkeypatch.setattr(Folder, "kept", other)
    facts = adopted(capsys, history("more.csv", 90, models=9), "--out", out, code=1)
    assert facts["reasons"]
    assert digest_of(tmp_path / "site") == before


def test_two_at_a_time_do_not_meet(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    first = history("first.csv", 60)
    with Folder(tmp_path / "site").locked():
        assert "is adopting into" in refused(capsys, first, "--out", str(tmp_path / "site"), code=3)
