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
    *optimizers.SHORT_NAMES,
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
