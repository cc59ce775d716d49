"""Tests of the comparison's protocol: evaluated groups are never trained on."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.accuracy import baselines
from benchmarks.peers.authors.architectures import Layer
from benchmarks.peers.baselines import gpumemnet_estimators
from benchmarks.peers.baselines.baseline import Sample, Target
from benchmarks.peers.baselines.gpumemnet import Bins
from benchmarks.peers.baselines.gpumemnet_estimators import Row, network_of
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


ROWS = [
    Row(str(w), network_of({"Batch Size": "6", "Activations-Params": f"[('linear', {w}, {w})]"}), 1000 * w * MIB)
    for w in range(1, 61)
]


def test_tests_on_seven_tenths_of_held_out_rows() -> None:
    folds = gpumemnet_estimators.folds_of("mlp", ROWS, Bins(30_000, 2), seed=0, carried=False, epochs=2)
    assert [len(fold.tested) for fold in folds] == [14] * 3
    assert all(fold.epochs == 2 and len(fold.said) == 14 and set(fold.said) <= {0, 1} for fold in folds)
    assert len({number for fold in folds for number in fold.tested}) == 42


def test_counts_answers_below_their_class() -> None:
    figures = gpumemnet_estimators.Figures.of([0, 1, 2, 2], [0, 2, 2, 1])
    assert (figures.n, figures.accuracy, figures.below) == (4, 0.5, 0.25)


def test_compares_both_on_traced_rows_of_test() -> None:
    exact = {row.name: row.measured_bytes for row in ROWS[30:]}
    lines = gpumemnet_estimators.lines_of("cnn", "mlp", ROWS, exact, seed=0, carried=False, epochs=2)
    _, published, theirs, ours = lines
    assert published[1] == 6516
    assert theirs[1] == ours[1]
    assert 0 < int(str(ours[1])) < 30  # some of the traced rows train the estimator or stop its training
    assert ours[2] == "1.0000"


def test_reads_crashed_runs_as_last_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_SHARED", str(tmp_path))
    with open(tmp_path / "gpumemnet_cnn_step1.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Filename", "Batch Size", "Activations-Params", "Max GPU Memory (MiB)", "Status"])
        layers = "[('conv2d', 3, 5)]"
        writer.writerow(["a.out", "4", layers, "1700", "SUCCESSFUL"])
        writer.writerow(["b.out", "4", layers, "39000", "OOM_CRASH"])
        writer.writerow(["c.out", "4", layers, "0", "SUCCESSFUL"])
    found = gpumemnet_estimators.rows_of("cnn")
    assert [row.measured_bytes // MIB for row in found] == [1700, 45_000]
    bins = Bins.of([row.measured_bytes for row in found], gpumemnet_estimators.BIN_MIB["cnn"])
    assert [bins.index(row.measured_bytes) for row in found] == [0, 5]
