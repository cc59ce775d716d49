"""Hooks on saved tensors: training is the same bit for bit whatever moves, and dropped blocks are free."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from vramcast.tracer.protocol.swap_rounds import SavedEvent, SavedMove, SavedRound
from vramcast.tracer.recording.swap_hooks import SwapHooks

Model = torch.nn.Module


class _Recurrent(Model):
    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTM(8, 8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.cell(x.view(-1, 2, 8))[0]
        return out


class _Checkpointed(Model):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.reentrant = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            x = x + checkpoint(lambda y, layer=layer: functional.gelu(layer(y)), x, use_reentrant=self.reentrant)
        return x


class _Tied(Model):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = functional.linear(x, self.weight.t()).chunk(4, dim=1)
        return functional.linear(torch.cat([part * parts[0].sigmoid() for part in parts], 1), self.weight)


class _InPlace(Model):
    """A buffer is saved, changed, and saved again: the two must not be taken for one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = x.clone()
        y = self.layer(x).relu_()
        z = y.exp()
        return z.mul(2).add_(y).tanh_()


class _Convolutional(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x.view(-1, 1, 4, 4))
        return out


MODELS: dict[str, Callable[[], Model]] = {
    "linear": lambda: torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)),
    "in place": _InPlace,
    "convolutions": _Convolutional,
    "LSTM": _Recurrent,
    "transformer": lambda: torch.nn.Sequential(
        torch.nn.Unflatten(1, (2, 8)), torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    ),
    "dropout": lambda: torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.3), torch.nn.GELU()),
    "tied": _Tied,
    "checkpointing": lambda: _Checkpointed(use_reentrant=False),
    "reentrant checkpointing": lambda: _Checkpointed(use_reentrant=True),
    "norms": lambda: torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 16), torch.nn.GroupNorm(2, 16)),
    "complex": lambda: torch.nn.Sequential(torch.nn.Linear(16, 16), _Spectrum()),
}


class _Spectrum(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.fft.fft(x)
        return (found * found.conj()).real.sqrt()


def train(make: Callable[[], Model], hooks: SwapHooks | None) -> list[torch.Tensor]:
    """Return gradients and parameters after five steps."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        x = torch.randn(8, 16, requires_grad=True)
        if hooks is None:
            loss = model(x).square().mean()
        else:
            with hooks.installed():
                loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [tensor for p in model.parameters() for tensor in (p.detach(), p.grad) if tensor is not None]


def all_away(make: Callable[[], Model], late: int) -> list[SavedRound]:
    """Return a plan that moves every storage, back `late` unpacks after the first."""
    events: list[SavedEvent] = []
    train(make, SwapHooks((), device="cpu", note=events.append))
    rounds: dict[int, dict[int, int]] = {}
    for event in events:
        if event.kind == "pack":
            rounds.setdefault(event.round, {}).setdefault(event.saved, event.size_bytes)
    found = {tuple(sizes.values()) for sizes in rounds.values()}
    return [SavedRound(sizes, tuple(SavedMove(n, n + 1, late) for n in range(len(sizes)))) for sizes in sorted(found)]


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("name", MODELS)
def test_training_is_equal_bit_for_bit(name: str, late: int) -> None:
    expected = train(MODELS[name], None)
    events: list[SavedEvent] = []
    found = train(MODELS[name], SwapHooks(all_away(MODELS[name], late), device="cpu", note=events.append))
    assert events
    assert len(expected) == len(found) > 0
    assert all(map(torch.equal, expected, found))


def test_block_is_dropped_at_its_call_and_back_at_its_unpack() -> None:
    size = 4 * 1000
    # exp saves its result, at calls 0, 1, 2; sum saves nothing
    hooks = SwapHooks([SavedRound((size, size, size), (SavedMove(0, 1, 1),))], device="cpu")
    storages: list[StorageWeakRef] = []
    with hooks.installed():
        x = torch.zeros(1000, requires_grad=True).exp()
        storages.append(StorageWeakRef(x.untyped_storage()))
        x = x.exp()
        assert storages[0].expired()
        x = x.exp()
    x.sum().backward()


def test_storage_held_by_the_job_is_named() -> None:
    events: list[SavedEvent] = []
    hooks = SwapHooks([SavedRound((4000, 4000), (SavedMove(0, 1, 0),))], device="cpu", note=events.append)
    with hooks.installed():
        held = torch.zeros(1000, requires_grad=True).exp()
        loss = held.exp().sum()
    loss.backward()
    assert [event.saved for event in events if event.kind == "kept"] == [0]


def test_round_of_other_sizes_moves_nothing() -> None:
    events: list[SavedEvent] = []
    hooks = SwapHooks([SavedRound((4000, 4000), (SavedMove(0, 1, 0),))], device="cpu", note=events.append)
    with hooks.installed():
        held = torch.zeros(999, requires_grad=True).exp()
        held.exp().sum().backward()
    assert not [event for event in events if event.kind == "kept"]


def test_graph_can_be_used_twice() -> None:
    hooks = SwapHooks([SavedRound((4000, 4000), (SavedMove(0, 1, 0), SavedMove(1, 2, 0)))], device="cpu")
    x = torch.linspace(0, 1, 1000, requires_grad=True)
    with hooks.installed():
        loss = x.exp().exp().sum()
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_tensor_changed_between_two_saves_keeps_its_later_values() -> None:
    hooks = SwapHooks([SavedRound((4000,), (SavedMove(0, 1, 0),))], device="cpu")
    scale, weight = torch.ones(1000), torch.ones(1000, requires_grad=True)
    with hooks.installed():
        logged = (scale * weight).sum()
        scale.add_(1)
        loss = (scale * weight).sum()
    loss.backward()
    assert logged.requires_grad  # its graph, with the first save, is still there
    assert weight.grad is not None
    assert weight.grad.eq(2).all()


def test_refuses_a_tensor_changed_after_it_was_saved() -> None:
    with SwapHooks((), device="cpu").installed():
        y = torch.zeros(10, requires_grad=True).exp()
        loss = y.sum()
        y.detach().add_(1)
    with pytest.raises(RuntimeError, match="changed by an in-place operation"):
        loss.backward()
