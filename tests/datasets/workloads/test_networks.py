"""Random networks on the CPU: outputs of the right shape, every weight used, layers according to the shape's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramcast.datasets.workloads import networks  # noqa: E402
from vramcast.datasets.workloads.network_shapes import CNN_SHAPES, MLP_SHAPES, layer_widths, stage_widths  # noqa: E402

NORMS = ("none", "batch", "layer", "group")


def check(network: Any, inputs: Any, shape: tuple[int, ...]) -> None:
    """Fail unless the output has that shape, and its sum of squares a gradient for every parameter."""
    output = network(inputs)
    assert tuple(output.shape) == shape
    output.square().sum().backward()
    unused = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert unused == []


def kinds(network: Any) -> set[str]:
    return {type(module).__name__ for module in network.modules()}


@pytest.mark.parametrize("shape", MLP_SHAPES)
@pytest.mark.parametrize("norm", NORMS)
def test_perceptrons_train(shape: str, norm: str) -> None:
    network = networks.mlp(24, 5, 24, 4, shape=shape, norm=norm, dropout=0.1)
    check(network, torch.randn(6, 24), (6, 5))
    expected = {"none": None, "batch": "BatchNorm1d", "layer": "LayerNorm", "group": "GroupNorm"}[norm]
    assert (kinds(network) & {"BatchNorm1d", "LayerNorm", "GroupNorm"}) == ({expected} if expected else set())


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh", "leaky_relu", "elu"])
def test_perceptron_has_requested_activation(activation: str) -> None:
    names = {name.lower() for name in kinds(networks.mlp(4, 2, 8, 2, activation=activation))}
    assert activation.replace("_", "") in names


@pytest.mark.parametrize("shape", CNN_SHAPES)
@pytest.mark.parametrize("norm", NORMS)
def test_convolutional_networks_train(shape: str, norm: str) -> None:
    check(networks.cnn(7, 8, 3, 2, shape=shape, norm=norm, dropout=0.1), torch.randn(2, 3, 16, 16), (2, 7))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("dense_outputs", [False, True])
@pytest.mark.parametrize("pool", [False, True])
def test_convolutional_network_has_one_to_three_dimensions(dimensions: int, dense_outputs: bool, pool: bool) -> None:
    size = (16,) * dimensions
    network = networks.cnn(4, 8, 3, 1, inputs=2, dimensions=dimensions, dense_outputs=dense_outputs, pool=pool)
    check(network, torch.randn(2, 2, *size), (2, 4, *size) if dense_outputs else (2, 4))
    assert any("MaxPool" in kind for kind in kinds(network)) == pool


@pytest.mark.parametrize("attention", ["sdpa", "eager", "torch"])
@pytest.mark.parametrize("outputs", [0, 3])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_scores_tokens_or_text(attention: str, outputs: int, norm_first: bool) -> None:
    network = networks.transformer(
        50, 16, 2, 4, 12, outputs, attention=attention, norm_first=norm_first, gated=attention == "eager", dropout=0.1
    )
    check(network, torch.randint(50, (2, 12)), (2, outputs) if outputs else (2, 12, 50))


def test_eager_and_fused_attention_agree() -> None:
    outputs = {}
    for attention in ("sdpa", "eager"):
        torch.manual_seed(0)
        network = networks.transformer(50, 16, 2, 4, 12, attention=attention, causal=True).eval()
        ids = torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(1))
        outputs[attention] = network(ids)
        changed = ids.clone()
        changed[:, -1] = (ids[:, -1] + 1) % 50
        torch.testing.assert_close(network(changed)[:, :-1], outputs[attention][:, :-1])
    torch.testing.assert_close(outputs["sdpa"], outputs["eager"], rtol=1e-4, atol=1e-5)


def test_accepts_rms_norm_and_narrow_inner_layer() -> None:
    network = networks.transformer(50, 16, 1, 4, 12, norm="rms", feedforward=24, activation="relu")
    assert "RMSNorm" in kinds(network)
    assert "LayerNorm" not in kinds(network)
    assert {module.out_features for module in network.modules() if type(module).__name__ == "Linear"} == {48, 16, 24, 50}


Widths = Callable[[str, int, int], list[int]]


@pytest.mark.parametrize(
    ("widths", "shape", "expected"),
    [
        (layer_widths, "uniform", [64, 64, 64, 64]),
        (layer_widths, "residual", [64, 64, 64, 64]),
        (layer_widths, "pyramid", [64, 32, 16, 8]),
        (layer_widths, "bottleneck", [64, 16, 64, 16]),
        (layer_widths, "dense", [16, 16, 16, 16]),
        (stage_widths, "uniform", [64, 64, 64, 64]),
        (stage_widths, "dense", [64, 64, 64, 64]),
        (stage_widths, "pyramid", [64, 128, 256, 512]),
    ],
)
def test_shape_sets_layer_widths(widths: Widths, shape: str, expected: list[int]) -> None:
    assert widths(shape, 64, 4) == expected
