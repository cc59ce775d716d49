"""Duration of learning: a correction of 10,000 runs, retrained, and one job's prediction.

    python -m benchmarks.speed.learning [--runs 10000] [--jobs 2]

The runs are made up: two of each model, both peaks measured, half of them with convolutions whose residual depends on two
features, one in twenty out of memory. Targets: training at most 5 min on two cores, a prediction at most 5 ms. The lower
limits, measured in the same run: one fit of xgboost alone on the same numbers, and one call of its predict.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.learner import training
from vramcast.learner.examples import Example
from vramcast.learner.features import NAMES
from vramcast.learner.model import LearnedModel
from vramcast.learner.table import subject_of, table_of

_PREDICTIONS = 200  # arbitrary
_LEVELS = (0.5, 0.9, 0.95, 0.99)  # spec: the quantiles of an estimate's JSON


def made_up(n: int, seed: int = 0) -> list[Example]:
    """Return `n` examples with a known truth."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(n):
        values = dict(zip(NAMES, random.normal(0, 1, len(NAMES)).tolist(), strict=True))
        is_convolution = number % 2 == 1
        values |= dict.fromkeys(("workspace_count", "count_convolution", "count_convolution_backward"), 8.0 * is_convolution)
        share = float(random.uniform())
        values["workspace_largest_share"] = share
        reserved = int(random.uniform(1000, 30000)) * MIB
        residual = 0.3 * share * (values["batch_size"] > 0) + random.normal(0, 0.03) if is_convolution else 0.0
        measured = round(reserved * float(np.exp(residual)))
        found.append(
            Example(
                str(number),
                group=f"{number // 4} {number % 2}",
                family="cnn" if is_convolution else "mlp",
                gpu="h200",
                stack="one",
                features=values,
                allocated=reserved,
                reserved=reserved,
                measured_reserved=measured,
                measured_process=measured + int(random.uniform(480, 520)) * MIB,
                censored=random.uniform() < 0.05,
            )
        )
    return found


def prediction_ms(learned: LearnedModel, examples: list[Example]) -> float:
    """Return the median milliseconds for one job's peak and bounds of the process."""
    took = []
    for example in examples[:_PREDICTIONS]:
        subject = subject_of(example, learned.contexts)
        started = time.perf_counter()
        learned.process(subject)
        learned.process_bounds(subject, _LEVELS)
        took.append(1000 * (time.perf_counter() - started))
    return statistics.median(took)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    examples = made_up(options.runs)
    started = time.perf_counter()
    learned = training.train(examples, {"n_jobs": options.jobs})
    trained_s = time.perf_counter() - started
    rows = table_of(examples, learned.contexts)
    started = time.perf_counter()
    learner = training.fitted(rows, ~rows.censored, {"n_jobs": options.jobs}, 0)
    fitted_s = time.perf_counter() - started
    started = time.perf_counter()
    for row in rows.X[:_PREDICTIONS]:
        learner.booster_.inplace_predict(row[None])
    called_ms = 1000 * (time.perf_counter() - started) / _PREDICTIONS
    predicted_ms = prediction_ms(learned, made_up(_PREDICTIONS, seed=1))
    rows_of_table = [
        (f"training, {options.runs} runs", trained_s, "s", 300, fitted_s),
        ("a prediction", predicted_ms, "ms", 5, called_ms),
    ]
    columns = ["what", "took", "target", "xgboost alone", "ratio"]
    cells = [
        [what, f"{took:.2f} {unit}", f"{target} {unit}", f"{alone:.2f} {unit}", f"{took / alone:.1f}"]
        for what, took, unit, target, alone in rows_of_table
    ]
    print(table(columns, cells))


if __name__ == "__main__":
    main()
