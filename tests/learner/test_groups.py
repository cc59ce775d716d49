"""Groups that the data contains, and no others."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vramcast.learner.residual_tree import ALL_RUNS, FEWEST_MODELS, FEWEST_OF_CAUSE, grown, in_words

RANDOM = np.random.default_rng(3)


def test_cuts_only_by_relevant_traits() -> None:
    n = 200
    wide = np.arange(n) % 2 == 0
    residuals = np.where(wide, RANDOM.exponential(1.0, n), 0.0)
    traits = [{"plans": "other" if is_wide else "exact", "day": str(i % 5)} for i, is_wide in enumerate(wide.tolist())]
    found = grown(residuals, np.arange(n), traits)
    assert found.trait == "plans"
    exact = found.path({"plans": "exact"})[1]
    assert residuals[exact.rows].max() == 0
    path = found.path({"plans": "exact"})
    assert [group.n_models for group in path[:2]] == [200, 100]
    assert found.no is not None
    assert found.path({})[1] is found.no  # a job without a trait has no value of it


def test_cuts_known_causes_first() -> None:
    """Three classes: convolutions err sometimes, and so do varying batches; neither alone would show among the other's."""
    kinds = [("much", "alike")] * 10 + [("none", "vary")] * FEWEST_OF_CAUSE + [("none", "alike")] * 30
    residuals = np.zeros(len(kinds))
    residuals[[0, 10]] = 0.2
    traits = [{"share": share, "batches": batches} for share, batches in kinds]
    found = grown(residuals, np.arange(len(kinds)), traits)
    assert [group.n_models for group in found.classes()] == [10, FEWEST_OF_CAUSE, 30]
    own = found.of_class({"share": "none", "batches": "alike"})
    assert own.name == "share not much, batches not vary"
    assert in_words(own.name) == "no known cause"
    assert in_words(found.of_class({"share": "much"}).name) == "share much"
    assert in_words(ALL_RUNS) == ALL_RUNS
    assert residuals[own.rows].max() == 0
    assert found.of_class({"share": "much", "batches": "vary"}).n_models == 10
    few = grown(residuals[:-27], np.arange(len(kinds) - 27), traits[:-27])
    assert [group.n_models for group in few.classes()] == [10, 7]  # three that do not vary are not a class


def test_few_models_are_no_group() -> None:
    residuals = np.concatenate([np.zeros(100), np.full(100, 5.0)])
    models = np.concatenate([np.arange(100), np.arange(100) % (FEWEST_MODELS - 1) + 100])
    traits = [{"kind": "exact"}] * 100 + [{"kind": "wild"}] * 100
    assert grown(residuals, models, traits).leaves()[0].name == ALL_RUNS


@given(
    st.lists(
        st.tuples(st.floats(-1, 3), st.integers(0, 40), st.sampled_from("ab"), st.sampled_from("xyz")), min_size=1, max_size=150
    )
)
def test_leaves_partition_runs(rows: list[tuple[float, int, str, str]]) -> None:
    traits = [{"first": first, "second": second} for _, _, first, second in rows]
    models = np.array([model for _, model, _, _ in rows])
    found = grown(np.array([value for value, _, _, _ in rows]), models, traits)
    assert np.sort(np.concatenate([leaf.rows for leaf in found.leaves()])).tolist() == list(range(len(rows)))
    for number, own in enumerate(traits):
        path = found.path(own)
        assert all(number in group.rows for group in path)
        assert all(group.n_models == len(set(models[group.rows].tolist())) for group in path)
        assert all(group.n_models >= FEWEST_MODELS for group in path[1:])
