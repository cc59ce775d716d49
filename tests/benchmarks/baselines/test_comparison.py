"""Tests of the comparison's protocol: evaluated groups are never trained on."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.accuracy import baselines, gpumemnet_estimators
from benchmarks.peers.authors.architectures import Layer
from benchmarks.peers.baselines.baseline import Sample, Target
from vramcast.core.units import MIB
from vramcast.learner.examples import Example


class Spy:
    """A baseline that records its inputs."""

    name = "spy"
    target: Target = "reserved"

    def __init__(self) -> None:
        self.learnt: set[str] = set()
        self.asked: list[str] = []

    def fit(self, train: Sequence[Sample]) -> None:
        self.learnt = {sample.example.group for sample in train}

    def estimate(self, test: Sequence[Sample]) -> list[int | None]:
        assert not self.learnt & {sample.example.group for sample in test}
        self.asked += [sample.example.id for sample in test]
        return [None if sample.example.family == "rnn" else 2 * (sample.measured("reserved") or 0) for sample in test]


def samples() -> list[Sample]:
    return [
        Sample(Example(str(i), f"model {i % 7}", "cnn" if i % 7 else "rnn", "h200", "", {}, 1, (i + 1) * MIB, (i + 1) * MIB))
        for i in range(28)
    ]


def test_separates_training_and_test_groups() -> None:
    spy, rows = Spy(), samples()
    found = baselines.held_out(spy, rows)
    assert sorted(spy.asked, key=int) == [str(i) for i in range(28)]
    assert found == [None if i % 7 == 0 else 2 * (i + 1) * MIB for i in range(28)]


def test_table_counts_covered_runs() -> None:
    text = baselines.compare("xmem", samples(), [Spy(), baselines.Simulated("reserved")])
    assert "| spy | all | 24 | 100.00 % |" in text
    assert "| simulated | all | 28 | 0.00 % |" in text
    assert "| spy | rnn |" not in text
    assert text.splitlines()[2].endswith("| 1.000 |")  # all are below 8000 MiB
    assert "| simulated | rnn | 4 |" in text


def test_simulates_with_context_of_training_rows() -> None:
    rows = [
        Sample(Example(str(i), "", "", "h200", "", {}, 1, 100, measured_process=100 + context, censored=i == 6))
        for i, context in enumerate((30, 40, 40, 41, 90, 200, 1000))
    ]
    process = baselines.Simulated("process")
    assert process.estimate(rows[:1]) == [None]
    process.fit(rows)
    assert process.estimate(rows[:1]) == [140]
    reserved = baselines.Simulated("reserved")
    reserved.fit(rows)
    assert reserved.estimate(rows[:1]) == [100]


def test_makes_network_of_gpumemnet_row() -> None:
    row = {"Batch Size": "6", "Activations-Params": "[('linear', 5, 55), ('ReLU', 5, 0), ('linear', 3, 18)]"}
    network = gpumemnet_estimators.network_of(row)
    assert network.layers == (Layer("linear", 5, 55), Layer("ReLU", 5), Layer("linear", 3, 18))
    assert (network.batch_size, network.parameters, network.activations) == (6, 73, 13)


def test_tests_on_seven_tenths_of_held_out_rows() -> None:
    rows = [
        (gpumemnet_estimators.network_of({"Batch Size": "6", "Activations-Params": f"[('linear', {w}, {w})]"}), w * MIB)
        for w in range(1, 61)
    ]
    folds = gpumemnet_estimators.folds_of("mlp", rows, 30, seed=0, carried=False, epochs=2)
    assert [fold.n for fold in folds] == [14] * 3
    assert all(fold.epochs == 2 and 0 <= fold.below <= 1 - fold.accuracy for fold in folds)
