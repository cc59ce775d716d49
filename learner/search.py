"""Search for a learner's parameters: optuna, seeded, by the loss of `gate` on models that no candidate has seen."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import optuna

from vramcast.learner import gate
from vramcast.learner.table import ExampleTable
from vramcast.learner.training import cross_fitted

_FOLDS: Final = 3  # arbitrary: candidates are evaluated less precisely than a shipped artifact
STUDY: Final = "vramcast"


def search(table: ExampleTable, trials: int, *, seed: int = 0, storage: str | None = None, n_jobs: int = 1) -> dict[str, Any]:
    """Return the best of `trials` sets of parameters for `ResidualQuantiles`.

    Args:
        table: Rows; the uncensored ones evaluate the candidates.
        trials: Number of candidates; the first is the default.
        seed: One searcher with the same seed finds the same result; several with a shared storage do not.
        storage: Address of an RDB (`sqlite:///search.db`): any number of processes may search together.
        n_jobs: Threads of a learner.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="minimize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        storage=storage,
        study_name=STUDY,
        load_if_exists=True,
    )
    if not study.trials:
        study.enqueue_trial(
            {"n_estimators": 150, "max_depth": 4, "learning_rate": 0.1, "colsample_bytree": 1.0, "min_child_weight": 3.0}
        )
    measured = ~table.censored

    def objective(trial: optuna.Trial) -> float:
        parameters = {
            "n_estimators": trial.suggest_int("n_estimators", 100, 600, step=50),
            "max_depth": trial.suggest_int("max_depth", 2, 7),
            "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.2, log=True),
            "colsample_bytree": trial.suggest_float("colsample_bytree", 0.2, 1.0),
            "min_child_weight": trial.suggest_float("min_child_weight", 1.0, 10.0, log=True),
        }
        fit = cross_fitted(table, {**parameters, "n_jobs": n_jobs}, folds=_FOLDS, seed=seed)
        losses = gate.bound_losses(table, fit.quantiles, fit.folds)
        return float(np.average(losses.learned[measured], weights=table.weights[measured]))

    study.optimize(objective, n_trials=trials)
    return dict(study.best_params)
