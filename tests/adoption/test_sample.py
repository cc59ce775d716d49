"""The prediction of one run applies to all of its kind, and the training runs represent the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("xgboost")

from vramcast.adoption import sample
from vramcast.learner import cross_validation, training
from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES

MIB = 1 << 20


def examples(repeats: int = 30, models: int = 6) -> list[Example]:
    """Return two jobs per model, the second a tenth as frequent; with both peaks or one, and some lower bounds."""
    found = []
    for model in range(models):
        for job in (0, 1):
            size_bytes = (1000 + 100 * model + 10 * job) * MIB
            seen = Example("", f"m{model}", "", "h200", "one", dict.fromkeys(NAMES, 0.0), size_bytes, size_bytes)
            for number in range(repeats if job == 0 else max(repeats // 10, 1)):
                peak = size_bytes + (number * 7 % 31 - 9) * MIB
                found.append(
                    replace(
                        seen,
                        id=f"{model} {job} {number:04}",
                        measured_reserved=peak if number % 3 else None,
                        measured_process=peak + 300 * MIB,
                        censored=number % 5 == 4,
                    )
                )
    return found


def test_scores_each_run_like_its_kind() -> None:
    runs = examples()
    learned = training.train(runs, {"n_estimators": 5})
    every = [one for run in runs if (one := cross_validation.scored_of(run, learned)) is not None]
    of_kinds = [
        one for kind in sample.kinds_of(runs).values() if (one := cross_validation.scored_of(kind[-1], learned)) is not None
    ]
    assert sample.said_of_all(of_kinds, runs) == sorted(every, key=lambda one: one.id)
    assert len(of_kinds) < len(every) / 5


def test_samples_models_equally_and_every_kind() -> None:
    runs = examples(300)
    chosen = sample.chosen(runs, 240)
    assert len(chosen) <= 240
    assert set(map(sample.kind_of, chosen)) == set(map(sample.kind_of, runs))
    of_model = [sum(run.group == f"m{model}" for run in chosen) for model in range(6)]
    assert len(set(of_model)) == 1
    rare = sum(run.id.split()[1] == "1" for run in chosen)
    assert 0.05 <= rare / len(chosen) <= 0.2  # a tenth, and one of each kind
    assert sample.chosen(list(reversed(runs)), 240) == chosen
    place = {kind: place for place, kind in enumerate(sample.kinds_of(runs))}
    assert sample.chosen(runs, 0) == sorted(runs, key=lambda run: place[sample.kind_of(run)])


def test_samples_measurements_of_a_kind_evenly() -> None:
    runs = [run for run in examples(300, models=1) if run.id.split()[1] == "0" and run.measured_reserved and not run.censored]
    chosen = sample.chosen(runs, 20)
    peaks, all_peaks = (sorted(run.measured_process or 0 for run in some) for some in (chosen, runs))
    assert len(peaks) == 20
    assert abs(peaks[10] - all_peaks[len(all_peaks) // 2]) <= 3 * MIB
    assert peaks[0] < all_peaks[len(all_peaks) // 10]
    assert peaks[-1] > all_peaks[9 * len(all_peaks) // 10]
