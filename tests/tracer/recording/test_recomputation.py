"""Recomputation of modules: same gradients, one more forward pass of these modules, and others left alone."""

from __future__ import annotations

import copy

import torch

from vramcast.tracer.recording.recomputation import installed


class Counted(torch.nn.Module):
    """A layer that counts its forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        self.calls += 1
        return torch.tanh(self.layer(x))


def test_named_modules_run_again_with_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"blocks": torch.nn.Sequential(Counted(), Counted(), Counted())})
    plain, batch = copy.deepcopy(model), torch.randn(3, 4)
    with installed(["blocks.0", "blocks.2"]):
        for each in (model, plain):
            each.forward = lambda x, each=each: each["blocks"](x)  # type: ignore[method-assign, misc]
        for _ in range(2):
            model(batch).sum().backward()
    for _ in range(2):
        torch.nn.Module.__call__(plain["blocks"], batch).sum().backward()
    assert [block.calls for block in model["blocks"]] == [4, 2, 4]
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)


def test_absent_path_changes_nothing() -> None:
    model = Counted()
    with installed(["blocks.7"]):
        model(torch.ones(1, 4)).sum().backward()
    assert model.calls == 1
