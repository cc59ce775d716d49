"""Gaps between estimates and a site's runs: found and named if they are planted, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("xgboost")

from tests.learner.conftest import MIB, make
from vramcast.adoption.gaps import gaps
from vramcast.learner import training
from vramcast.learner.examples import Example

QUICK = {"n_estimators": 20, "max_depth": 3, "learning_rate": 0.2}


@pytest.fixture(scope="module")
def exact() -> list[Example]:
    """Return runs that were measured as they were estimated, on one stack whose context was assumed rightly."""
    return [
        replace(one, measured_reserved=None, measured_process=one.reserved + 500 * MIB, context=500 * MIB)
        for one in make(160, per_group=1)
    ]


def found(examples: list[Example]) -> list[str]:
    """Return the gaps of these runs."""
    return gaps(training.train(examples, QUICK, folds=4), examples)


def test_exact_estimates_have_no_gap(exact: list[Example]) -> None:
    assert found(exact) == []


def test_larger_context_is_named(exact: list[Example]) -> None:
    (gap,) = found([replace(one, measured_process=(one.measured_process or 0) + 300 * MIB) for one in exact])
    assert "800.0 MiB by 160 runs, 300.0 MiB larger than assumed (500.0 MiB)" in gap


def test_workspace_by_kind_of_layer_is_named_with_its_features(exact: list[Example]) -> None:
    def with_workspace(one: Example) -> Example:
        share = 0.4 * one.features["workspace_largest_share"]
        return replace(one, measured_process=(one.measured_process or 0) + round(share * one.reserved))

    named = found([with_workspace(one) if one.family == "cnn" else one for one in exact])
    of_process = [gap for gap in named if gap.startswith("process peak of jobs with convolution")]
    assert {gap.partition("trees ")[2].partition(",")[0] for gap in of_process} == {"set bounds", "correct estimates"}
    assert all("read above all workspace_largest_share" in gap for gap in of_process)
    assert not any("dense" in gap for gap in named)
