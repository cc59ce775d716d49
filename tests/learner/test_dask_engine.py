from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vramcast.learner import stacks, training
from vramcast.learner.conformal import LEVELS
from vramcast.learner.examples import Example
from vramcast.learner.gate import pinball

QUICK = {"n_estimators": 40, "max_depth": 3, "learning_rate": 0.15}


@pytest.mark.filterwarnings("ignore")  # dask's and distributed's own, at start and end of a cluster
def test_cluster_learns_as_well_as_one_process(make_examples: Callable[..., list[Example]]) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("distributed")
    pytest.importorskip("pandas")
    from vramcast.learner import dask_engine
    from vramcast.learner.table import table_of

    examples = [e for e in make_examples(4800, noise=0.05) if e.family == "cnn"]  # all other residuals are 0
    table = table_of(examples, stacks.learn(examples))
    known, new = np.arange(1200), np.arange(1200, 2400)
    alone = training.fitted(table, known, QUICK, 0).predict_quantiles(table.X[new])
    with dask_engine.cluster(2):
        together = training.fitted(table, known, {**QUICK, "engine": "dask"}, 0).predict_quantiles(table.X[new])
    losses = [
        sum(float(pinball(table.y[new] - quantiles[:, at], level).mean()) for at, level in enumerate(LEVELS))
        for quantiles in (alone, together)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    for column, level in enumerate(LEVELS):
        shares = [float((table.y[new] <= quantiles[:, column]).mean()) for quantiles in (alone, together)]
        # Two binomial spreads of 1200 rows, doubled, because both are drawn.
        assert abs(shares[0] - shares[1]) <= 4 * (2 * level * (1 - level) / len(new)) ** 0.5
