"""Tests of the classes at their edges, the features, and seeded trainings on small made-up data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.authors.architectures import Layer
from benchmarks.peers.baselines import gpumemnet
from benchmarks.peers.baselines.baseline import Baseline, Sample
from benchmarks.peers.baselines.gpumemnet import (
    DEPTHS,
    LAYER_INPUTS,
    LEARNING_RATE,
    MAX_LAYERS,
    Bins,
    Classifier,
    GpuMemNet,
    Kind,
    MlpEnsemble,
    TransformerEnsemble,
    activation_angle,
    features,
    kind_of,
    sequence,
)
from benchmarks.peers.baselines.network import Network
from vramcast.core.errors import UsageError
from vramcast.core.units import MIB
from vramcast.learner.examples import Example

KINDS: list[Kind] = ["mlp", "transformer"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def network(width: int, depth: int = 3, batch_size: int = 8) -> Network:
    layers = tuple(layer for _ in range(depth) for layer in (Layer("linear", width, width * width), Layer("ReLU", width)))
    return Network(batch_size, layers, depth * width * width)


def made_up(n: int = 96) -> tuple[list[Network], list[int]]:
    networks = [network(int(width)) for width in np.random.default_rng(0).integers(8, 4096, n)]
    return networks, [int(one.parameters > 6_000_000) for one in networks]


def test_puts_edge_into_class_below() -> None:
    bins = Bins.of([1443 * MIB, 4925 * MIB], 1000)
    assert (bins.first, bins.count) == (1, 4)
    assert [bins.index(mib * MIB) for mib in (1001, 2000, 4001, 5000)] == [0, 0, 3, 3]
    assert bins.index(2000 * MIB + 1) == 1
    assert [bins.upper_bytes(i) for i in (0, 3)] == [2000 * MIB, 5000 * MIB]


def test_puts_outside_value_into_nearest_class() -> None:
    bins = Bins.of([1443 * MIB, 4925 * MIB], 1000)
    assert bins.index(1) == 0
    assert bins.index(90_000 * MIB) == 3


def test_rejects_bins_of_nothing() -> None:
    with pytest.raises(UsageError, match="at least one"):
        Bins.of([], 1000)


@given(st.lists(st.integers(1, 80_000 * MIB), min_size=1, max_size=20), st.sampled_from([1000, 2000, 8000]))
def test_puts_every_value_between_class_edges(sizes: list[int], width: int) -> None:
    bins = Bins.of(sizes, width)
    for size in sizes:
        upper = bins.upper_bytes(bins.index(size))
        assert upper - width * MIB < size <= upper


def test_gives_equal_kinds_to_both_notations() -> None:
    for ours, theirs in (("Linear", "linear"), ("BatchNorm2d", "batchnorm2d"), ("Conv2d", "conv2d"), ("Dropout", "dropout")):
        assert kind_of(Layer(ours, 1)) == kind_of(Layer(theirs, 1))
    assert len({kind_of(Layer(name, 1)) for name in ("linear", "batch_normalization", "conv2d", "dropout", "GELU")}) == 5


def test_encodes_activation_as_angle() -> None:
    assert activation_angle([Layer("linear", 1), Layer("ELU", 1), Layer("Tanh", 1)]) == 0
    assert activation_angle([Layer("linear", 1), Layer("Tanh", 1)]) == pytest.approx(10 / 11 * math.pi)
    assert activation_angle([Layer("linear", 1)]) is None
    assert features(Network(1, (), 0))[-2:] == [0, 0]


def test_keeps_all_sizes_of_long_sequences() -> None:
    long = network(2, depth=MAX_LAYERS)
    rows = sequence(long)
    assert rows.shape == (MAX_LAYERS, LAYER_INPUTS)
    assert rows[:, -4].sum() == long.activations
    assert rows[:, -3].sum() == long.parameters


def test_stacked_members_equal_single_ones() -> None:
    torch.manual_seed(0)
    ensemble = MlpEnsemble(5, 3, (2, 1)).eval()
    x = torch.randn(7, 5)
    first, second = ensemble.hidden
    norms, ends = ensemble.norms, ensemble.ends

    def normed(values: torch.Tensor) -> torch.Tensor:
        return values / math.sqrt(1 + norms[0].eps)  # a new batch norm in eval mode

    def linear(layer: torch.nn.Module, member: int, values: torch.Tensor) -> torch.Tensor:
        return values @ layer.get_parameter("weight")[member] + layer.get_parameter("bias")[member]

    shallow = linear(ends[0], 0, normed(linear(first, 1, x)).relu())
    deep = linear(ends[1], 0, normed(linear(second, 0, normed(linear(first, 0, x)).relu())).relu())
    torch.testing.assert_close(ensemble(x), (shallow + deep) / 2)


def test_has_a_few_thousand_weights() -> None:
    inputs = len(features(network(4)))
    for net in (MlpEnsemble(inputs, 4, DEPTHS), TransformerEnsemble(inputs, 4)):
        assert 1_500 < sum(parameter.numel() for parameter in net.parameters()) < 13_600


def test_ignores_padding() -> None:
    torch.manual_seed(0)
    net = TransformerEnsemble(6, 3).eval()
    x, layers, padding = torch.randn(2, 6), torch.randn(2, 5, LAYER_INPUTS), torch.zeros(2, 5, dtype=torch.bool)
    longer = torch.cat([layers, torch.randn(2, 4, LAYER_INPUTS)], 1)
    masked = torch.cat([padding, torch.ones(2, 4, dtype=torch.bool)], 1)
    torch.testing.assert_close(net(x, longer, masked), net(x, layers, padding), rtol=1e-4, atol=1e-5)


def trained(kind: Kind, epochs: int) -> Classifier:
    networks, classes = made_up()
    classifier = Classifier(kind, 2, seed=1, epochs=epochs)
    classifier.fit(networks[24:], classes[24:], networks[:24], classes[:24])
    return classifier


@pytest.mark.parametrize("kind", KINDS)
def test_trains_repeatably_without_touching_random_state(kind: Kind) -> None:
    state = torch.random.get_rng_state()
    first, second = (trained(kind, 4).net for _ in range(2))
    assert first is not None
    assert second is not None
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("kind", "epochs", "learning_rate"),
    [
        ("mlp", 25, 10 * LEARNING_RATE),
        ("transformer", 25, 10 * LEARNING_RATE),
        pytest.param("mlp", 60, LEARNING_RATE, marks=pytest.mark.release),
        pytest.param("transformer", 150, LEARNING_RATE, marks=pytest.mark.release),
    ],
)
def test_learns_from_training_data(kind: Kind, epochs: int, learning_rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpumemnet, "LEARNING_RATE", learning_rate)
    networks, classes = made_up()
    assert np.mean(np.array(trained(kind, epochs).predict(networks)) == classes) > 0.9


def test_starts_each_fit_anew_by_default() -> None:
    networks, classes = made_up()
    rows = (networks[24:], classes[24:], networks[:24], classes[:24])

    def weights(*, warm_start: bool, fits: int) -> torch.Tensor:
        classifier = Classifier("mlp", 2, epochs=3, warm_start=warm_start)
        for _ in range(fits):
            classifier.fit(*rows)
        assert classifier.net is not None
        return torch.cat([parameter.flatten() for parameter in classifier.net.parameters()])

    once = weights(warm_start=False, fits=1)
    assert torch.equal(weights(warm_start=False, fits=2), once)
    assert not torch.equal(weights(warm_start=True, fits=2), once)


def test_rejects_unfitted_classifier() -> None:
    with pytest.raises(UsageError, match="call fit first"):
        Classifier("mlp", 2).predict([])


# The estimator as a baseline --------------------------------------------------------------------------------------


def runs(n: int = 60) -> list[Sample]:
    return [
        Sample(Example(str(i), str(i), "mlp", "a100-40gb", "", {}, 1, 1, measured_process=size * MIB), network(width))
        for i in range(n)
        for width, size in [(64, 1500) if i % 2 else (2048, 2500)]
    ]


def test_estimates_upper_edge_of_known_networks() -> None:
    samples = runs()
    method: Baseline = GpuMemNet("mlp", 1000, epochs=60)
    assert method.estimate(samples[:1]) == [None]
    method.fit(samples)
    unknown = replace(samples[0], network=None)
    assert method.estimate([samples[0], unknown, samples[1]]) == [3000 * MIB, None, 2000 * MIB]


def test_estimates_nothing_without_training_data() -> None:
    samples = runs(8)
    censored = [replace(sample, example=replace(sample.example, censored=True)) for sample in samples]
    method = GpuMemNet("mlp", 1000, epochs=2)
    method.fit(samples)
    method.fit(censored)
    assert method.estimate(samples) == [None] * len(samples)


def test_ignores_peaks_of_test_rows() -> None:
    samples = runs()
    method = GpuMemNet("mlp", 1000, epochs=5)

    def said(test: Sequence[Sample]) -> list[int | None]:
        method.fit(samples[:40])
        return method.estimate(test)

    other = [replace(sample, example=replace(sample.example, measured_process=9000 * MIB)) for sample in samples[40:]]
    assert said(samples[40:]) == said(other)
