"""A new artifact against the shipped one: who is better on the jobs held out, and why a bound becomes wider."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("xgboost")

from tests.adoption.test_adopt import adopted
from tests.adoption.test_gate import scored
from vramcast.adoption import pipeline, shipped_artifact
from vramcast.adoption.artifact_store import Folder
from vramcast.adoption.shipped_artifact import ArtifactComparison, as_estimated, compared
from vramcast.cli import adoption_text
from vramcast.cli.main import main
from vramcast.estimates.bounds.public import RESIDUALS
from vramcast.jobs.job import Job
from vramcast.learner.evaluation.scored_run import Scored
from vramcast.learner.examples import Example
from vramcast.learner.traits import CONVOLUTION

GIB = 1 << 30
History = Callable[..., str]


def against(new: list[Scored], shipped: list[Scored], like: tuple[int, int] = (14, 14)) -> ArtifactComparison:
    return compared(new, shipped, [like])


def test_narrower_artifact_with_its_coverage_is_better() -> None:
    found = against(scored(40), scored(40, wide=3.0))
    assert (found.better, found.reasons, found.wider) == ("new", (), [])
    assert (found.runs, found.models) == (160, 40)
    assert all(one.change < 0 for one in found.levels)


def test_needlessly_wide_artifact_is_worse() -> None:
    found = against(scored(40, wide=3.0), scored(40), like=(6, 14))
    assert found.better == "shipped"
    assert "the shipped artifact" in found.reasons[0]
    assert [one.level for one in found.wider] == [0.9, 0.95, 0.99]
    assert "fewer models: 6 like them support 0.857, the shipped artifact's 14 support 0.933" in found.wider[0].because


def test_wider_bound_is_better_where_the_shipped_one_fails() -> None:
    found = against(scored(40), scored(40, true_to=-2.0))
    assert found.better == "new"
    first = found.wider[0]
    assert any(reason.startswith("the shipped bound covers only") for reason in first.because)
    assert any(reason.startswith("larger residuals: 90 % of the jobs take up to") for reason in first.because)
    assert first.coverage_shipped is not None
    assert first.coverage is not None
    assert first.coverage_shipped < 0.5 < first.coverage


def test_worst_of_few_models_decides() -> None:
    found = against(scored(40, wide=3.0), scored(40, wide=1.5), like=(12, 12))
    assert found.wider[0].because == ("with 12 models, the one with the largest residual decides the bound",)


def test_only_runs_with_the_same_peak_are_compared() -> None:
    other = [replace(run, measured_bytes=run.measured_bytes + 1) for run in scored(6)]
    assert against(scored(6), other) == ArtifactComparison()
    assert against(scored(6), [*scored(3), *other[12:]]).models == 3


def test_shipped_bound_is_at_least_the_built_in_rule_where_that_has_more_models() -> None:
    """As in an estimate: the rule knows more depthwise convolutions, and counts where the artifact guarantees nothing."""
    run = Scored("a", "m", "", "a100-80gb", "", 10 * GIB, 10 * GIB, {0.9: 10 * GIB, 0.99: 10 * GIB}, promised=frozenset({0.9}))
    example = Example("a", "m", "", "a100-80gb", "", {}, 10 * GIB, 10 * GIB, 10 * GIB, libraries=("cudnn",))
    example = replace(example, traits={"share": "much", "depthwise": "unqueried"})
    shipped = shipped_artifact.load()
    found = as_estimated([run], {"a": example}, {}, shipped)[0]
    assert found.bounds[0.9] == 10 * GIB
    assert found.bounds[0.99] == pytest.approx((1 + RESIDUALS[CONVOLUTION].at(0.99)) * 10 * GIB)
    assert as_estimated([run], {"a": replace(example, traits={"share": "much"})}, {}, shipped) == [run]


def test_worse_artifact_stays_out_unless_wanted(
    tmp_path: Path,
    history: History,
    asked: list[Job],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline.AdoptOptions, "parameters", lambda self, rows: {"n_estimators": 4})
    worse = against(scored(40, wide=3.0), scored(40))
    monkeypatch.setattr("vramcast.adoption.verdict.against_shipped", lambda judged: worse)
    out, first = str(tmp_path / "site"), history("first.csv", 32)
    facts = adopted(capsys, first, "--out", out, code=1)
    assert (facts["promoted"], facts["keep"], facts["shipped"]["better"]) == (False, "better", "shipped")
    assert facts["reasons"] == facts["worse"] == list(worse.reasons)
    assert not adopted(capsys, first, "--out", out, "--keep", "old")["promoted"]
    assert adopted(capsys, first, "--out", out, "--keep", "new")["promoted"]

    monkeypatch.setattr("vramcast.cli.verbs.learn.is_interactive", lambda: True)
    for answers, end in (("\n", "the shipped artifact stays in use; --keep new"), ("what\nyes\n", "is deployed")):
        monkeypatch.setattr("sys.stdin", io.StringIO(answers))
        capsys.readouterr()
        assert main(["learn", first, "--out", str(tmp_path / str(len(answers)) / "site")]) == 0
        found = capsys.readouterr()
        assert "deploy the new artifact? [y/N]" in found.err
        assert end in found.out


def test_answer_says_what_is_kept_and_what_to_do(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.AdoptOptions, "parameters", lambda self, rows: {"n_estimators": 4})
    assert main(["learn", history("first.csv", 60), "--out", str(tmp_path / "site"), "--keep", "new"]) == 0
    said = capsys.readouterr().out
    for part in ("against the shipped artifact, on 60 runs of 8 models held out:", "are below the bound (shipped", "next: "):
        assert part in said


def test_report_has_no_costs_without_durations(
    tmp_path: Path, history: History, asked: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.AdoptOptions, "parameters", lambda self, rows: {"n_estimators": 4})
    first = Path(history("first.csv", 60))
    first.write_text(first.read_text().replace(",3600", ","))
    facts = adopted(capsys, str(first), "--out", str(tmp_path / "site"))
    assert facts["requests"]["left_out"] == {"their duration is not known": 60}
    page = Folder(tmp_path / "site").report.read_text()
    costs = page[page.index("Cost of request policies") : page.index("Jobs that would have died")]
    assert "Nothing to show." in costs
    assert "60 runs are left out: their duration is not known" in costs
    assert "saved" not in costs
    assert "<td>0</td>" not in page[page.index("By card:") : page.index("By family:")]


def test_nothing_to_compare_is_said(asked: list[Job]) -> None:
    assert "covers none of these jobs" in adoption_text._comparison(ArtifactComparison().to_dict())[0]


def test_shipped_artifact_covers_no_job_of_an_unknown_class() -> None:
    example = Example("a", "m", "", "a100-80gb", "", {}, GIB, GIB, GIB, traits={"operators": "none such"})
    assert not shipped_artifact.is_covered(shipped_artifact.load(), example)
