from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest

from vramcast.learner import cross_validation, training
from vramcast.learner.evaluation import metrics
from vramcast.learner.examples import Example
from vramcast.learner.stacks import StackContext
from vramcast.learner.table import subject_of

MIB = 1 << 20
MakeExamples = Callable[..., list[Example]]
QUICK = {"n_estimators": 40, "max_depth": 3, "learning_rate": 0.15}


@pytest.mark.parametrize(("n", "folds"), [(200, 3), pytest.param(600, 5, marks=pytest.mark.release)])
def test_scores_runs_without_their_model(make_examples: MakeExamples, n: int, folds: int) -> None:
    examples = make_examples(n, process=True)
    scored = cross_validation.cross_validated(examples, QUICK, levels=(0.9, 0.95), folds=folds)
    assert [one.id for one in scored] == [example.id for example in examples]
    figures = metrics.evaluate(scored)
    assert figures["mre"] < 0.01
    for level, share in figures["coverage"].items():
        spread = math.sqrt(len(scored) * 0.1) / len(scored)
        # Half of the runs are simulated exactly and always covered.
        assert float(level) - 4 * spread <= share <= 1
    n_corrected = n // 2
    n_calibrated = n_corrected / 2 * (1 - 1 / folds)  # models of two runs
    for level, share in figures["by"]["family"]["cnn"]["coverage"].items():
        spread = math.sqrt(float(level) * (1 - float(level)) * (1 / n_corrected + 1 / n_calibrated))
        assert float(level) - 4 * spread <= share <= 1


def test_learns_from_others_without_scored_models(make_examples: MakeExamples, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = make_examples(40)
    twins = [
        dataclasses.replace(e, id=f"twin {e.id}", group=e.group if number % 2 else "new") for number, e in enumerate(examples)
    ]
    seen: list[set[str]] = []
    train = cross_validation.train

    def watched(known: list[Example], *args: object, **options: object) -> object:
        seen.append({e.group for e in known})
        assert sum(e.id.startswith("twin") and e.group == "new" for e in known) == 20
        return train(known, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(cross_validation, "train", watched)
    scored = cross_validation.cross_validated(examples, QUICK, folds=2, others=twins)
    assert [one.id for one in scored] == [e.id for e in examples]
    groups = {e.group for e in examples}
    assert all(known < groups | {"new"} for known in seen)
    assert seen[0] & seen[1] == {"new"}


def test_cannot_predict_noise(make_examples: MakeExamples) -> None:
    """Each model has its own residual, and a feature that identifies the model but not the residual of another one."""
    examples = [e for e in make_examples(400, noise=0.0, per_group=4) if e.family == "cnn"]
    own = {group: 1 + 0.2 * (number * 37 % 101) / 101 for number, group in enumerate(sorted({e.group for e in examples}))}
    changed = [
        dataclasses.replace(
            e,
            features={**e.features, "log_reserved": float(list(own).index(e.group))},
            measured_reserved=round(e.reserved * own[e.group]),
        )
        for e in examples
    ]
    leaked = training.train(changed, QUICK, folds=5)
    seen = [abs(leaked.reserved(subject_of(e, {})) / (e.measured_reserved or 1) - 1) for e in changed]
    unseen = [abs(one.error or 0.0) for one in cross_validation.cross_validated(changed, QUICK, folds=3)]
    assert sum(unseen) / len(unseen) > 0.03
    assert not leaked.reserved_head.bounds.families or sum(seen) <= sum(unseen)


def test_scores_process_peak_if_measured(make_examples: MakeExamples) -> None:
    (example,) = make_examples(1, process=True)
    known = {"one": StackContext(500 * MIB, 500 * MIB, 500 * MIB, 9)}
    scored = cross_validation.scored_of(example, None, contexts=known)
    assert scored is not None
    assert (scored.measured_bytes, scored.estimated_bytes) == (example.measured_process, example.reserved + 500 * MIB)
    assert cross_validation.scored_of(example, None) is None  # the context is unknown
    (reserved_only,) = make_examples(1)
    plain = cross_validation.scored_of(reserved_only, None)
    assert plain is not None
    assert plain.measured_bytes == reserved_only.measured_reserved


def test_predicts_out_of_memory_with_context(make_examples: MakeExamples) -> None:
    (example,) = make_examples(1)
    card_gib = (example.reserved + 300 * MIB) / (1 << 30)
    on_card = dataclasses.replace(example, features={**example.features, "card_gib": card_gib})
    for context, said in ((200 * MIB, False), (400 * MIB, True)):
        scored = cross_validation.scored_of(dataclasses.replace(on_card, context=context), None)
        assert scored is not None
        assert scored.said_out_of_memory is said


@pytest.mark.parametrize("n", [0, 1])
def test_rejects_a_single_model(make_examples: MakeExamples, n: int) -> None:
    with pytest.raises(ValueError, match="models are too few"):
        cross_validation.cross_validated(make_examples(n))
