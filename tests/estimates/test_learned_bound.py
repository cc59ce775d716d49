from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vramcast.cli.main import main
from vramcast.core.errors import ArtifactError, UsageError
from vramcast.estimates.bounds import learned as correction
from vramcast.estimates.bounds.learned import METHOD
from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device
from vramcast.hardware.context import Context
from vramcast.hardware.device import Device
from vramcast.jobs.job import Job
from vramcast.learner.conformal import Calibration
from vramcast.learner.model import Head, LearnedModel, Subject
from vramcast.learner.stacks import StackContext
from vramcast.report.answer import headline, lines

MIB = 1 << 20
CONTEXT = 777 * MIB


@pytest.fixture(scope="module")
def plain(make_job: Callable[..., Job], tiny_models: Path, auto_tracer: str) -> Estimate:
    job = make_job(target=f"{tiny_models}:wide", batch="512x1024", device="h200", search_path=tuple(sys.path))
    return Estimator(artifact="none").estimate_job(job)


@pytest.fixture(scope="module")
def artifact(plain: Estimate, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact of two hundred models like the job, measured with 2 % more than simulated, or 10 % for every tenth."""
    pytest.importorskip("xgboost")
    from vramcast.estimates.learner_input import observed
    from vramcast.learner import artifact as artifacts
    from vramcast.learner import training

    seen = observed(plain)
    examples = [
        dataclasses.replace(
            seen,
            id=str(number),
            group=f"model {number}",
            stack=f"NVIDIA H200, 580, 13.0, {plain.torch}",
            measured_reserved=(measured := round(plain.reserved * (1.10 if number % 10 == 0 else 1.02))),
            measured_process=measured + CONTEXT,
        )
        for number in range(200)
    ]
    path = tmp_path_factory.mktemp("models") / "mine"
    artifacts.save(training.train(examples, {"n_estimators": 80, "learning_rate": 0.3}, folds=3), path)
    return path


@pytest.fixture(scope="module")
def corrected(plain: Estimate, artifact: Path) -> Estimate:
    return Estimator(artifact=artifact).estimate_job(plain.job)


def test_artifact_changes_quantiles_not_peaks(plain: Estimate, corrected: Estimate) -> None:
    assert (corrected.allocated, corrected.reserved) == (plain.allocated, plain.reserved)
    assert corrected.process == plain.reserved + CONTEXT  # the context is measured, not assumed
    assert (plain.context.assumed, corrected.context.assumed, corrected.context.bytes) == (True, False, CONTEXT)
    assert corrected.quantile(0.5) == pytest.approx(plain.reserved * 1.02 + CONTEXT, rel=1e-3)
    assert corrected.quantile(0.95) == pytest.approx(plain.reserved * 1.10 + CONTEXT, rel=1e-3)
    assert corrected.upper_bound >= corrected.quantile(0.95) >= corrected.quantile(0.9) >= corrected.quantile(0.5)


def test_json_names_artifact_and_method(corrected: Estimate, plain: Estimate) -> None:
    said = corrected.to_dict()
    assert (said["artifact"], said["out_of_distribution"]) == ("mine", False)
    assert said["upper_bound"]["method"].startswith(METHOD)
    assert said["upper_bound"]["n_calibration"] == 200
    assert said["seconds"]["learn"] > 0
    assert set(said) == set(plain.to_dict())
    assert (plain.to_dict()["artifact"], plain.to_dict()["out_of_distribution"]) == (None, None)


def test_other_card_has_its_own_context(corrected: Estimate) -> None:
    assert corrected.fits("h200")
    small = dataclasses.replace(corrected.job.device, total_bytes=corrected.quantile(0.99) - 1)
    assert not corrected.fits(small)
    assert isinstance(corrected.bound, correction.LearnedBound)
    elsewhere = dataclasses.replace(corrected.job.device, key="l4")
    assert corrected.bound.on_card(elsewhere, corrected.context).context == corrected.context.bytes


def test_adds_nccl_to_measured_context(corrected: Estimate) -> None:
    assert isinstance(corrected.bound, correction.LearnedBound)
    card, plain = corrected.job.device, corrected.context
    alone, with_nccl = (corrected.bound.on_card(card, context) for context in (plain, plain.plus(1, 20, 300, what="NCCL")))
    assert with_nccl.context == alone.context + 20
    assert (alone.beside["libraries"][-1], with_nccl.beside["libraries"][-1]) == (0, pytest.approx(280, rel=1e-3))


def test_flags_unfamiliar_job(corrected: Estimate, make_job: Callable[..., Job], artifact: Path) -> None:
    job = dataclasses.replace(
        make_job(batch="8x1024", device="rtx3060", search_path=tuple(sys.path)), target=corrected.job.target
    )
    strange = Estimator(artifact=artifact).estimate_job(job)
    assert strange.to_dict()["out_of_distribution"] is True
    assert any("differs from the measured runs behind the bound" in text for text in strange.warnings)


def test_default_level_is_what_the_class_supports(corrected: Estimate) -> None:
    assert (corrected.bound.support.models, corrected.level) == (200, 0.95)


def test_unsupported_level_uses_rule_as_floor(corrected: Estimate) -> None:
    assert isinstance(corrected.bound, correction.LearnedBound)
    card, context = corrected.job.device, corrected.context
    rule = PublicBound(corrected.reserved, frozenset({"cudnn"}))
    both = dataclasses.replace(corrected.bound, at_least=rule)
    assert both.quantile(0.9, card, context) == corrected.bound.quantile(0.9, card, context)  # guaranteed
    assert both.quantile(0.999, card, context) == rule.quantile(0.999, card, context)
    assert both.margin(0.999, card, context) == rule.margin(0.999, card, context)
    assert "at least empirical" in both.method(0.999, card)[0]
    assert "at least" not in both.method(0.9, card)[0]


def test_reads_artifact_from_option_or_variable(
    plain: Estimate, artifact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["estimate", str(plain.job.target), "--batch", "512x1024", "--json"]
    assert main([*arguments, "--artifact", str(artifact)]) == 0
    assert json.loads(capsys.readouterr().out)["artifact"] == "mine"
    monkeypatch.setenv("VRAMCAST_ARTIFACT", str(artifact))
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["artifact"] == "mine"
    assert main(["doctor", "--json"]) == 0
    assert "200 runs of 200 models" in json.loads(capsys.readouterr().out)["artifact"]
    assert main([*arguments, "--artifact", str(tmp_path / "absent")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_rejects_wrong_artifact_before_tracing(plain: Estimate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xgboost")

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("traced")

    monkeypatch.setattr(Estimator, "uncorrected", never)
    with pytest.raises(ArtifactError, match="cannot be read"):
        Estimator(artifact=tmp_path).estimate_job(plain.job)


def test_finds_shipped_artifact_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = correction.named("default")
    learned = correction.load(folder)
    assert learned.card["groups"] >= 20
    assert not learned.reads_features
    assert "MIT" in (folder / "CARD.md").read_text()
    (tmp_path / "default").mkdir()
    assert correction.named("default") == Path("default")
    monkeypatch.setenv("VRAMCAST_ARTIFACT", "mine")
    assert correction.chosen(None) == Path("mine")
    assert correction.shipped(None) is None
    assert correction.chosen("none") is correction.shipped("none") is None


def test_shipped_artifact_serves_covered_jobs(plain: Estimate) -> None:
    """Check without a chosen artifact: a class with too few models has a warning, and the bound of the built-in rule."""
    seen = correction.load(correction.named("default")).n_models
    covered = {trait: max(by, key=lambda value: by[value]) for trait, by in seen.items()}
    known = dataclasses.replace(plain, traits=covered)
    served = Estimator().apply_artifact(known)
    assert served.to_dict()["artifact"] == "default"
    assert served.to_dict()["upper_bound"]["method"].startswith(METHOD)
    strange = Estimator().apply_artifact(dataclasses.replace(known, traits={**known.traits, "tracer": "crystal ball"}))
    assert strange.to_dict()["artifact"] is None
    assert strange.bound is plain.bound
    assert any("too few jobs with tracer crystal ball were measured" in text for text in strange.warnings)
    assert Estimator(artifact="none").apply_artifact(known) is known


def test_bounds_differ_between_cards() -> None:
    # Only the H200's stack was measured: on the other card the context is the assumed one, 300 MiB as on the H200.
    stack = StackContext(CONTEXT, CONTEXT, CONTEXT, 50, "h200")
    learned = LearnedModel(Head(None, Calibration.empty()), contexts={"NVIDIA H200, 580, 13.0, 2.11.0": stack})
    bound = correction.LearnedBound("mine", learned, Subject({}, 1000 * MIB), (), "2.11.0")
    assumed = Context(300 * MIB, 300 * MIB, 300 * MIB, "by hand", assumed=True)
    cards = [device(key) for key in ("h200", "l4", "h200")]
    assert [bound.quantile(0.9, card, assumed) for card in cards] == [1777 * MIB, 1300 * MIB, 1777 * MIB]


# ------------------------------------------------------------------------------------------------ risk
def sized(estimate: Estimate, total_bytes: int) -> Device:
    return dataclasses.replace(estimate.job.device, total_bytes=total_bytes)


def test_share_that_fits_is_the_level_of_the_bound_at_the_card(corrected: Estimate) -> None:
    for level in (0.75, 0.9, 0.95):
        share = corrected.probability_fits(sized(corrected, corrected.bound_at(level)))
        assert share is not None
        assert share >= level
        assert (corrected.probability_fits(sized(corrected, corrected.bound_at(level) - 1)) or 0) < level


def test_share_that_fits_grows_with_the_card(corrected: Estimate, plain: Estimate) -> None:
    sizes = np.linspace(0.5 * corrected.process, 2 * corrected.process, 60).astype(int).tolist()
    for estimate in (corrected, plain):
        shares = [estimate.probability_fits(sized(estimate, size)) or 0.0 for size in sizes]
        assert shares == sorted(shares)
        assert shares[0] < 0.5 < shares[-1] <= 1


def test_share_that_fits_is_unknown_with_a_doubt(corrected: Estimate) -> None:
    doubtful = dataclasses.replace(corrected, unbounded_calls=("nonzero",))
    assert doubtful.probability_fits() is None
    assert set(doubtful.to_dict()["probability_fits"].values()) == {None}
    assert corrected.to_dict()["probability_fits"]["h200"] > 0.9


def test_quantile_refuses_levels_without_models(corrected: Estimate) -> None:
    with pytest.raises(UsageError, match=r"quantile\(0.999\) takes 999 measured models .* the 200 here support 0.995"):
        corrected.quantile(0.999)
    assert corrected.bound_at(0.999) >= corrected.bound_at(0.99) == corrected.quantile(0.99)


def test_job_unlike_the_runs_gets_the_wider_of_two_bounds(
    corrected: Estimate, make_job: Callable[..., Job], artifact: Path
) -> None:
    job = dataclasses.replace(
        make_job(batch="8x1024", device="rtx3060", search_path=tuple(sys.path)), target=corrected.job.target
    )
    strange = Estimator(artifact=artifact).estimate_job(job)
    shipped = Estimator().estimate_job(job)
    assert strange.bound.is_out_of_distribution
    for level in (0.9, 0.95, 0.99):
        assert strange.bound_at(level) >= shipped.bound_at(level) - max(shipped.context.bytes - strange.context.bytes, 0)
    assert "unlike the measured ones" in headline(strange)
    assert "the wider of two bounds" in dict(map(tuple, lines(strange)))["bound"]
