from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from vramcast.core.errors import DatasetError
from vramcast.learner import stacks, sum_quantile, training
from vramcast.learner.conformal import LEVELS
from vramcast.learner.examples import Example
from vramcast.learner.model import BoundAtLevel, LearnedModel, Scope, Subject
from vramcast.learner.residual import ResidualQuantiles
from vramcast.learner.table import ExampleTable, subject_of, table_of

MIB = 1 << 20
MakeExamples = Callable[..., list[Example]]

QUICK = {"n_estimators": 60, "max_depth": 3, "learning_rate": 0.1}


def subject(example: Example) -> Subject:
    return Subject.of(example)


@pytest.fixture(scope="module")
def learned(make_examples: MakeExamples) -> LearnedModel:
    return training.train(make_examples(1200), QUICK, folds=5)


# ------------------------------------------------------------------------------------------------ the learner
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:Estimator's parameters changed")
def test_learner_is_scikit_learn_regressor() -> None:
    random_rows = {"check_sample_weight_equivalence_on_dense_data": "rows are drawn for each tree, so weights are not repeats"}
    check_estimator(ResidualQuantiles(n_estimators=20, learning_rate=0.3), expected_failed_checks=random_rows, on_skip=None)


def test_quantiles_have_shares_and_never_cross() -> None:
    random = np.random.default_rng(3)
    X = random.uniform(0, 1, (4000, 2))
    y = X[:, 0] + random.normal(0, 0.1 + X[:, 1])
    quantiles = ResidualQuantiles(**QUICK).fit(X[:2000], y[:2000]).predict_quantiles(X[2000:])
    assert (np.diff(quantiles, axis=1) >= 0).all()
    for column, level in enumerate(LEVELS):
        assert abs((y[2000:] <= quantiles[:, column]).mean() - level) < 0.05


def test_censored_rows_raise_quantiles() -> None:
    """A third of the rows is cut off at a random point: leaving them out, or using the cut as the value, is too low."""
    random = np.random.default_rng(5)
    n = 4000
    X = random.uniform(0, 1, (n, 1))
    truth = random.normal(0, 1, n)
    cut = random.normal(0.6, 1, n)
    censored = cut < truth
    seen = np.minimum(truth, cut)
    grid = np.linspace(0.1, 0.9, 50)[:, None]
    of = [LEVELS.index(level) for level in (0.5, 0.75, 0.9)]

    def fitted(**options: object) -> float:
        learner = ResidualQuantiles(**QUICK).fit(X, seen, **options)
        return float(learner.predict_quantiles(grid)[:, of].mean())

    true = np.mean([0.0, 0.6745, 1.2816])
    ours, as_values = fitted(censored=censored), fitted()
    left_out = ResidualQuantiles(**QUICK).fit(X[~censored], seen[~censored]).predict_quantiles(grid)[:, of].mean()
    assert abs(ours - true) < 0.6 * min(abs(as_values - true), abs(left_out - true))


def test_learner_needs_an_uncensored_row() -> None:
    with pytest.raises(ValueError, match="All rows are censored"):
        ResidualQuantiles().fit([[1.0], [2.0]], [1.0, 2.0], censored=[True, True])


# ------------------------------------------------------------------------------------------------ the context
def test_context_is_mode_of_remainder(make_examples: MakeExamples) -> None:
    found = stacks.learn(make_examples(200, process=True))
    assert found["one"].size_bytes == 500 * MIB  # half of the jobs are simulated exactly
    both = [dataclasses.replace(e, measured_process=(e.measured_reserved or 0) + 7) for e in make_examples(20)]
    measured = stacks.learn(both)["one"].of([])
    assert (measured.size_bytes, measured.low_bytes, measured.high_bytes, measured.n) == (7, 7, 7, 20)
    assert stacks.learn(make_examples(3, process=True)) == {}


def test_contexts_differ_by_libraries(make_examples: MakeExamples) -> None:
    """Batch norm's part of cuDNN takes 40 MiB more; with too few such jobs, the stack's context applies to them too."""
    examples = [
        dataclasses.replace(e, libraries=("cudnn", "norm"), measured_process=(e.measured_process or 0) + 40 * MIB)
        if number % 3 == 0
        else dataclasses.replace(e, libraries=("cudnn",) if number != 1 else ("cudnn", "rnn"))
        for number, e in enumerate(make_examples(300, process=True, convolution=False))
    ]
    context = stacks.learn(examples)["one"]
    assert context.gpu == "h200"
    assert context.of(("norm", "cudnn")).size_bytes == 540 * MIB
    assert context.of(("cudnn",)).size_bytes == context.of(("cudnn", "rnn")).size_bytes == 500 * MIB


def test_uses_remainder_of_process_peak_if_large(make_examples: MakeExamples) -> None:
    (example,) = make_examples(1, process=True, convolution=False)
    known = {"one": stacks.StackContext(500 * MIB, 500 * MIB, 500 * MIB, 9)}
    assert stacks.measured_reserved(example, known) == example.reserved
    assert stacks.measured_reserved(dataclasses.replace(example, reserved=120 * MIB), known) is None
    assert stacks.measured_reserved(dataclasses.replace(example, reserved=120 * MIB, measured_reserved=7), known) == 7


@pytest.mark.parametrize("n_new", [120, pytest.param(400, marks=pytest.mark.release)])
def test_process_peak_has_own_head(make_examples: MakeExamples, n_new: int) -> None:
    """Contexts vary from run to run here: the bound of the process peak includes that, the reserved peak's does not."""
    random = np.random.default_rng(987)  # not the seed of the examples, whose sizes come from such numbers too

    def some(n: int, seed: int) -> list[Example]:
        return [
            dataclasses.replace(e, measured_process=(e.measured_reserved or 0) + int(random.uniform(200, 800)) * MIB)
            for e in make_examples(n, seed=seed, per_group=1, convolution=False)
        ]

    learned = training.train(some(400, 1), QUICK, folds=4)
    assert learned.process_head is not None
    new = some(n_new, 2)
    subjects = [subject_of(example, learned.contexts) for example in new]
    exact = list(zip(subjects, new, strict=True))[: n_new // 4]
    assert all(learned.bounds(s, [0.9])[0].size_bytes == e.measured_reserved for s, e in exact)
    levels = (
        0.75,
        0.9,
    )  # with 120 new runs, chance alone allows full coverage at 0.9: only 0.75 can show a bound that is too high
    bounds = [learned.process_bounds(s, levels) for s in subjects]
    for place, level in enumerate(levels):
        held = [of_job[place].size_bytes >= (e.measured_process or 0) for of_job, e in zip(bounds, new, strict=True)]
        # Binomial spread of the trial and of the calibration on 400 runs.
        spread = math.sqrt(level * (1 - level) * (1 / 400 + 1 / n_new))
        assert abs(sum(held) / len(held) - level) < 4 * spread
    reserved_only = training.train(make_examples(100), QUICK, folds=3)
    assert reserved_only.process_head is None
    assert reserved_only.process(dataclasses.replace(subjects[0], context=7)) == reserved_only.reserved(subjects[0]) + 7


def test_needs_a_context(make_examples: MakeExamples) -> None:
    with pytest.raises(DatasetError, match=r"measured - estimated has the median .* in 3 runs"):
        training.train(make_examples(3, process=True))


# ------------------------------------------------------------------------------------------------ the correction
def test_adds_nothing_where_simulation_is_exact(learned: LearnedModel, make_examples: MakeExamples) -> None:
    assert str(learned.reserved_head.bounds) == "convolution inference"
    exact = [example for example in make_examples(200, seed=9) if example.family == "mlp"]
    assert all(learned.reserved(subject(example)) == example.measured_reserved for example in exact)
    assert all(learned.bounds(subject(example), [0.99])[0].size_bytes == example.measured_reserved for example in exact)


def test_spares_exact_family(make_examples: MakeExamples) -> None:
    def without_convolutions(example: Example, **features: float) -> dict[str, float]:
        return {**example.features, "workspace_count": 0.0, **features}

    some = [e for e in make_examples(600) if e.family == "cnn"]
    exact = [
        dataclasses.replace(
            e, id=f"exact {e.id}", group=f"exact {e.group}", features=without_convolutions(e), measured_reserved=e.reserved
        )
        for e in some[:60]
    ]
    some = [dataclasses.replace(e, features=without_convolutions(e, count_attention=9.0)) for e in some]
    learned = training.train([*some, *exact], QUICK, folds=4)
    assert str(learned.reserved_head.points) == "attention inference"
    assert all(learned.reserved(subject(e)) == e.reserved for e in exact)
    assert any(learned.reserved(subject(e)) != e.reserved for e in some)


def test_ignores_effects_within_one_model(make_examples: MakeExamples) -> None:
    """Each model has a residual and a feature of its own: only a learner that has seen its other runs beats none."""
    some = [e for e in make_examples(240, per_group=4) if e.family == "cnn"]
    own = {group: 0.9 + 0.2 * (number * 37 % 101) / 101 for number, group in enumerate(sorted({e.group for e in some}))}
    of_models = [
        dataclasses.replace(
            e,
            features={**e.features, "log_reserved": float(list(own).index(e.group)), "workspace_largest_share": 0.0},
            measured_reserved=round(e.reserved * own[e.group]),
        )
        for e in some
    ]
    eager = {**QUICK, "min_child_weight": 0.1, "colsample_bytree": 1.0}
    assert training.train(of_models, eager, folds=3).reserved_head.bounds == Scope()
    each_its_own = [dataclasses.replace(e, group=e.id) for e in of_models]
    assert training.train(each_its_own, eager, folds=3).reserved_head.bounds != Scope()


def test_corrects_simulation_errors(learned: LearnedModel, make_examples: MakeExamples) -> None:
    new = [example for example in make_examples(400, seed=9) if example.family == "cnn"]
    errors = [abs(learned.reserved(subject(e)) / (e.measured_reserved or 1) - 1) for e in new]
    plain = [abs(e.reserved / (e.measured_reserved or 1) - 1) for e in new]
    assert np.median(errors) < 0.03 < np.median(plain)


PROMISED = [0.5, 0.9, 0.95, 0.97]


@pytest.fixture(scope="module", params=[200, pytest.param(1000, marks=pytest.mark.release)])
def bounds_of_new_models(
    request: pytest.FixtureRequest, learned: LearnedModel, make_examples: MakeExamples
) -> list[tuple[Example, list[BoundAtLevel]]]:
    """Return convolution jobs of unseen models, with their bounds at the levels in `PROMISED`."""
    new = [example for example in make_examples(2 * request.param, seed=21, per_group=1) if example.family == "cnn"]
    return [(example, learned.bounds(subject(example), PROMISED)) for example in new]


@pytest.mark.parametrize("level", PROMISED)
def test_bounds_of_new_models_reach_coverage(
    bounds_of_new_models: list[tuple[Example, list[BoundAtLevel]]], level: float
) -> None:
    new = [(example, bounds[PROMISED.index(level)]) for example, bounds in bounds_of_new_models]
    assert {bound.key for _, bound in new} == {"share much"}
    hits = sum(bound.size_bytes >= (example.measured_reserved or 0) for example, bound in new)
    # Binomial spread of the trial and of the calibration, whose 300 groups of two are about as good as 300 runs.
    spread = math.sqrt(len(new) * level * (1 - level) * (1 + len(new) / 300))
    assert abs(hits - level * len(new)) <= 4 * spread


def test_bound_rises_with_level_and_reports_guarantee(learned: LearnedModel, make_examples: MakeExamples) -> None:
    for example in make_examples(16, seed=33):
        bounds = [learned.bounds(subject(example), [level])[0] for level in (0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 0.999)]
        sizes = [bound.size_bytes for bound in bounds]
        assert sizes == sorted(sizes)
        assert sizes[0] >= learned.reserved(subject(example))
        assert [bound.is_promised for bound in bounds] == [True] * 6 + [False]


def test_unanswered_calls_widen_bound(learned: LearnedModel, make_examples: MakeExamples) -> None:
    """Serving equals evaluation: the widening belongs to the artifact, grows with the level, and is combined, not added."""
    (_, example) = make_examples(2, seed=44)
    one = subject(example)
    two_unknown = dataclasses.replace(one, unknown=2)
    assert learned.bounds(two_unknown, [0.5])[0].size_bytes == learned.bounds(one, [0.5])[0].size_bytes
    for level in (0.9, 0.99):
        wider = learned.bounds(two_unknown, [level])[0].size_bytes - learned.bounds(one, [level])[0].size_bytes
        assert 0 < wider < 0.1 * (2 * level - 1) * one.reserved  # at most 5 % per call


def test_uncertain_context_widens_process_bound(learned: LearnedModel, make_examples: MakeExamples) -> None:
    """The margin of an exactly simulated job comes only from its context, apart from a cell of `joined`."""
    for example, is_exact in zip(make_examples(2, seed=44), (True, False), strict=True):
        known = dataclasses.replace(subject(example), context=500 * MIB, is_measured=True)
        vague = dataclasses.replace(known, beside={"context": sum_quantile.uniform(100 * MIB)}, is_measured=False)
        assert learned.process_head is None
        for level, share in ((0.5, 0.0), (0.95, 0.9)):
            sizes = [learned.process_bounds(one, [level])[0].size_bytes for one in (known, vague)]
            more_mib = (sizes[1] - sizes[0]) / MIB
            least, most = (100 * share - 1, 100 * share + 7) if is_exact else (0, 101)
            assert least <= more_mib <= most
        names = [part.name for part in learned.process_parts(vague)]
        assert names == ["allocator", "context"]


def test_flags_unlike_job_and_widens_bound(learned: LearnedModel, make_examples: MakeExamples) -> None:
    (_, like) = make_examples(2, seed=44)
    assert not learned.is_out_of_distribution(subject(like))
    names = ["batch_size", "card_gib", "sm_count", "near_capacity", "log_steps", "peak_step"]
    strange = {**like.features, **dict.fromkeys(names, 1e6)}
    unlike = dataclasses.replace(subject(like), features=strange)
    assert set(learned.outside(unlike)) == set(names)
    assert learned.is_out_of_distribution(unlike)
    less = dataclasses.replace(unlike, features={**strange, "log_steps": 0.0})
    assert not learned.is_out_of_distribution(less)
    assert learned.bounds(unlike, [0.95])[0].size_bytes > learned.bounds(subject(like), [0.95])[0].size_bytes


def test_training_is_reproducible(make_examples: MakeExamples) -> None:
    some = make_examples(200)
    first, second = training.train(some, QUICK, folds=3), training.train(some, QUICK, folds=3)
    trees = [one.reserved_head.quantiles.to_json() for one in (first, second) if one.reserved_head.quantiles]
    assert len(trees) == 2
    assert trees[0] == trees[1]
    scores = [one.reserved_head.calibration.scores for one in (first, second)]
    assert (scores[0] == scores[1]).all()
    cuts = [[leaf.name for leaf in one.reserved_head.calibration.groups.leaves()] for one in (first, second)]
    assert cuts[0] == cuts[1]


def test_examples_without_features_only_calibrate(make_examples: MakeExamples) -> None:
    bare = [
        dataclasses.replace(e, features={}, traits={"operators": "convolution" if e.family == "cnn" else "dense"})
        for e in make_examples(400, per_group=1)
    ]
    learned = training.train(bare)
    assert not learned.reads_features
    assert learned.n_models["operators"] == {"convolution": 200, "dense": 200}
    assert learned.lacks({"operators": "dense", "gpu": "any"}) == []
    assert learned.lacks({"operators": "attention", "size": "any"}) == ["operators attention"]
    exact, convolution = (Subject.of(e) for e in bare[:2])
    assert learned.reserved(convolution) == convolution.reserved
    assert learned.bounds(exact, [0.9])[0].size_bytes == exact.reserved
    assert learned.bounds(convolution, [0.9])[0].size_bytes > 1.2 * convolution.reserved


@pytest.fixture
def small_table(make_examples: MakeExamples) -> ExampleTable:
    examples = make_examples(24)
    return table_of(examples, stacks.learn(examples))


def test_search_is_reproducible(small_table: ExampleTable) -> None:
    pytest.importorskip("optuna")
    from vramcast.learner.search import search

    first, second = search(small_table, 2, seed=1), search(small_table, 2, seed=1)
    assert first == second
    assert set(first) == {"n_estimators", "max_depth", "learning_rate", "colsample_bytree", "min_child_weight"}


def test_searches_share_a_storage(tmp_path: Path, small_table: ExampleTable) -> None:
    optuna = pytest.importorskip("optuna")
    from vramcast.learner.search import search

    storage = f"sqlite:///{tmp_path}/search.db"
    search(small_table, 1, storage=storage)
    search(small_table, 1, storage=storage)
    assert len(optuna.load_study(study_name="vramcast", storage=storage).trials) == 2


@pytest.mark.parametrize("n_later", [100, pytest.param(400, marks=pytest.mark.release)])
def test_recalibration_restores_coverage(learned: LearnedModel, make_examples: MakeExamples, n_later: int) -> None:
    """Another cluster: convolutions take a fifth more than in the training data."""
    from vramcast.learner.drift import drift

    def elsewhere(n: int, seed: int) -> list[Example]:
        return [
            dataclasses.replace(e, id=f"new {e.id}", measured_reserved=round((e.measured_reserved or 0) * 1.2))
            for e in make_examples(2 * n, seed=seed, per_group=1)
            if e.family == "cnn"
        ]

    here, later = elsewhere(400, 50), elsewhere(n_later, 51)
    again = training.recalibrated(learned, here)
    before, after = drift(learned, later)["cnn"], drift(again, later)["cnn"]
    assert before["coverage"]["0.95"] < 0.1
    assert before["median_residual"] == pytest.approx(0.2, abs=0.02)
    spread = math.sqrt(0.95 * 0.05 * (1 / len(later) + 1 / len(here)))  # of the trial and of the calibration
    assert abs(after["coverage"]["0.95"] - 0.95) <= 4 * spread
    assert again.reserved_head.quantiles is learned.reserved_head.quantiles


def test_rejects_only_lower_bounds(make_examples: Callable[..., list[Example]]) -> None:
    with pytest.raises(DatasetError, match="All runs are lower bounds"):
        training.train([dataclasses.replace(one, censored=True) for one in make_examples(4)])


def test_ignores_lower_bounds_for_contexts(make_examples: MakeExamples) -> None:
    # Their process may have taken more than was seen: here it was seen with 1 MiB above its reserved memory.
    whole = make_examples(10, process=True, convolution=False)
    seen_early = [
        dataclasses.replace(e, id=f"early {e.id}", censored=True, measured_process=e.reserved + MIB)
        for e in make_examples(40, seed=1, process=True, convolution=False)
    ]
    assert stacks.learn(seen_early) == {}
    assert stacks.learn([*whole, *seen_early]) == stacks.learn(whole)
