"""The table of optimizers against torch's own classes."""

from __future__ import annotations

import inspect

import pytest
import torch

from vramcast.core.errors import UsageError
from vramcast.hardware.cards import device
from vramcast.jobs import optimizers
from vramcast.jobs.job import Job, Training
from vramcast.tracer.program.model_program import build_optimizer

SPELLINGS = (
    *optimizers.OPTIMIZERS,
    *(name for name, (of, _) in optimizers.SHORT_NAMES.items() if of in optimizers.OPTIMIZERS),
    *("sgd:momentum=0.5", "sgdm:momentum=0", "adam:amsgrad=true", "AdamW:amsgrad=false", "adam:fused=true"),
    *("rmsprop:momentum=0.9", "rmsprop:momentum=0.9,centered=true", "adagrad:lr_decay=0.1"),
)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_state_tensors_match_torch(spelling: str) -> None:
    weight = torch.nn.Parameter(torch.ones(3, 5))
    weight.grad = torch.ones(3, 5)
    optimizer = build_optimizer(Job(device("t4"), training=Training(optimizer=spelling)), [weight])
    optimizer.step()
    kept = [value for value in optimizer.state[weight].values() if torch.is_tensor(value) and value.shape == weight.shape]
    assert len(kept) == optimizers.state_tensors(spelling)


def test_fusable_optimizers_accept_fused() -> None:
    classes = {name.lower(): kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
    for name, optimizer in optimizers.OPTIMIZERS.items():
        assert ("fused" in inspect.signature(classes[name]).parameters) == optimizer.is_fusable, name
    assert optimizers.is_fusable("SGDM:nesterov=true")
    assert not optimizers.is_fusable("lion")


def test_parses_short_name_and_options() -> None:
    assert optimizers.parse("SGDM") == ("sgd", {"momentum": 0.9})
    assert optimizers.parse("sgdm:momentum=0.5,nesterov=true") == ("sgd", {"momentum": 0.5, "nesterov": True})
    with pytest.raises(UsageError, match="'fused' is not key=value"):
        optimizers.parse("adam:fused")


def test_parses_names_of_transformers_and_code() -> None:
    assert optimizers.parse("adamw_torch_fused") == ("adamw", {"fused": True})
    assert optimizers.parse("paged_adamw_8bit") == ("bitsandbytes.optim:AdamW", {"optim_bits": 8, "is_paged": True})
    assert optimizers.parse("torch.optim:AdamW:betas=[0.8,0.9],fused=true") == (
        "torch.optim:AdamW",
        {"betas": [0.8, 0.9], "fused": True},
    )
    assert optimizers.is_code("prodigyopt:Prodigy")
    assert not optimizers.is_code("adamw:fused=true")


@pytest.mark.integration  # importing transformers takes longer than a unit test may
def test_short_names_are_those_of_transformers() -> None:
    training_args = pytest.importorskip("transformers.training_args", exc_type=Exception)  # torchvision of another torch
    known = {one.value for one in training_args.OptimizerNames}
    own = {"sgdm", "adamw8bit", "paged_adamw", "paged_lion", "lion"}
    assert set(optimizers.SHORT_NAMES) - known == own


def test_builds_class_of_package() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    built = build_optimizer(Job(device("t4"), training=Training(optimizer="torch.optim:SGD:momentum=0.5")), [weight])
    assert built.defaults["momentum"] == 0.5
    for stated, message in (
        ("no_package_here:Adam", "needs the package no_package_here .*pip install no_package_here"),
        ("torch.optim:Adamm", "torch.optim has no class Adamm"),
        ("adamw8bits", "did you mean adamw8bit?"),
    ):
        with pytest.raises(UsageError, match=message):
            build_optimizer(Job(device("t4"), training=Training(optimizer=stated)), [weight])
