"""Changes applied inside a program: what they change, and the line that a user writes for the same effect."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from vramcast.tracer.changes import batches, checkpointing, forward_passes, optimizer_steps, optimizers, registry, settings
from vramcast.tracer.changes.change import set_argument

ROWS = TensorDataset(torch.arange(24.0))


def library(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Let a module of a training library be one with this content."""
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


def train(loader: Any, model: torch.nn.Module, validate: Any = ()) -> None:
    """Train a step on the first batch of a loader, after a look at another loader."""
    for _ in validate:
        break
    for (batch,) in loader:
        model(batch[:, None]).sum().backward()
        break


# ------------------------------------------------------------------------------------------------ the batch
def test_notes_batch_of_loader_that_trains() -> None:
    facts: dict[str, Any] = {}
    with batches.installed(None, facts):
        train(DataLoader(ROWS, batch_size=6), torch.nn.Linear(1, 1), DataLoader(ROWS, batch_size=4))
    assert (facts["value"], facts["most"], "now" in facts) == (6, 24, False)
    assert facts["way"].startswith("batch_size=6 of the data loader in ")
    assert "test_changes.py:" in facts["way"]


@pytest.mark.parametrize(
    "make",
    [lambda: DataLoader(ROWS, batch_size=6), lambda: DataLoader(ROWS, 6, True), lambda: DataLoader(dataset=ROWS, batch_size=6)],
)
def test_replaces_batch_of_that_size_only(make: Any) -> None:
    facts: dict[str, Any] = {}
    with batches.installed((6, 12), facts):
        loader = make()
        other, sampler = DataLoader(ROWS, batch_size=4), BatchSampler(SequentialSampler(range(24)), 6, drop_last=False)
        train(loader, torch.nn.Linear(1, 1))
    assert [len(next(iter(one))[0]) for one in (loader, other)] == [12, 4]
    assert (len(next(iter(sampler))), facts["value"], facts["now"]) == (12, 6, 12)


def test_library_may_make_changed_loader_again() -> None:
    facts: dict[str, Any] = {}
    with batches.installed((6, 12), facts):
        changed = DataLoader(ROWS, batch_size=6)
        train(DataLoader(ROWS, batch_size=changed.batch_size), torch.nn.Linear(1, 1))
    assert (facts["value"], facts["now"], "batch_size=12" in facts["way"]) == (6, 12, True)


def test_setting_of_trainer_precedes_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    class TrainingArguments:
        per_device_train_batch_size = 6

        def __post_init__(self) -> None:
            self.total = 2 * self.per_device_train_batch_size

    library(monkeypatch, "transformers.training_args", TrainingArguments=TrainingArguments)
    facts: dict[str, Any] = {}
    with batches.installed((6, 8), facts):
        arguments = TrainingArguments()
        arguments.__post_init__()
        train(DataLoader(ROWS, batch_size=8), torch.nn.Linear(1, 1))
    assert (arguments.total, facts["value"], facts["owner"]) == (16, 6, "Trainer")
    assert facts["way"] == "TrainingArguments(per_device_train_batch_size=8)"


def test_recognizes_search_of_program(monkeypatch: pytest.MonkeyPatch) -> None:
    library(monkeypatch, "accelerate.utils.memory", find_executable_batch_size=lambda function: function)
    facts: dict[str, Any] = {}
    with batches.installed(None, facts):
        sys.modules["accelerate.utils.memory"].find_executable_batch_size(print)
        for size in (12, 6):
            train(DataLoader(ROWS, batch_size=size), torch.nn.Linear(1, 1))
    assert (facts["search"], facts["value"]) == ("accelerate's find_executable_batch_size", 6)


def test_ultralytics_takes_batch_from_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    class BaseTrainer:
        def __init__(self, cfg: Any = None, overrides: Any = None, _callbacks: Any = None) -> None:
            self.overrides = overrides

    library(monkeypatch, "ultralytics.engine.trainer", BaseTrainer=BaseTrainer)
    facts: dict[str, Any] = {}
    with batches.installed((16, 32), facts):
        assert BaseTrainer(overrides={"imgsz": 64}).overrides == {"imgsz": 64, "batch": 32}
        assert BaseTrainer("default.yaml", {"imgsz": 64}, ()).overrides == {"imgsz": 64, "batch": 32}
    assert (facts["value"], facts["now"], facts["way"]) == (16, 32, "batch=32")


# ------------------------------------------------------------------------------------------------ steps and gradients
@pytest.mark.parametrize("order", ["step-start", "after-step"])
def test_optimizer_steps_once_for_several_batches(order: str) -> None:
    weight = torch.nn.Parameter(torch.zeros(()))
    with optimizer_steps.accumulated(3, facts := {}):
        optimizer = torch.optim.SGD([weight], lr=1.0)
        seen = []
        for _ in range(6):
            if order == "step-start":
                optimizer.zero_grad()
            weight.backward(torch.tensor(1.0))
            optimizer.step()
            if order == "after-step":
                optimizer.zero_grad()
            seen.append(weight.item())
    assert seen == [0, 0, -3, -3, -3, -6]
    assert facts["way"].startswith("optimizer.step() and zero_grad() after each 3 batches")


def test_kept_gradients_are_noted_and_dropped() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight])
    for is_changed, is_kept in ((None, True), (True, False)):
        weight.grad = torch.ones(2)
        with optimizer_steps.dropped(is_changed, facts := {}):
            optimizer.zero_grad(set_to_none=False)
        assert ((weight.grad is not None), facts.get("value"), "way" in facts) == (is_kept, 0, not is_kept)
    with optimizer_steps.dropped(None, facts := {}):
        optimizer.zero_grad()
    assert facts == {}


# ------------------------------------------------------------------------------------------------ the model
class Model(torch.nn.Module):
    """A model of three equal blocks that notes whether it runs under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(3))
        self.is_cast: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.is_cast.append(torch.is_autocast_enabled("cuda"))
        for layer in self.layers:
            x = layer(x)
        return x


def test_autocast_is_around_training_forward_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    model = Model()
    with forward_passes.autocast(True, facts := {}):
        model(torch.ones(1, 2))
        model.eval()(torch.ones(1, 2))
    assert (model.is_cast, "torch.autocast" in facts["way"]) == ([True, False], True)
    with forward_passes.autocast(True, facts := {}):
        model.train().bfloat16()(torch.ones(1, 2, dtype=torch.bfloat16))
    assert facts == {"obstacle": "the program already runs in 16 bits"}


def test_blocks_are_checkpointed_unless_model_has_a_switch() -> None:
    model = Model()
    assert checkpointing._switched_on(model).endswith("for each block of layers")
    assert all(block.forward.func is torch.utils.checkpoint.checkpoint for block in model.layers)  # type: ignore[attr-defined]
    assert checkpointing._switched_on(torch.nn.Linear(2, 2)) == ""
    with_switch = Model()
    with_switch.gradient_checkpointing_enable = lambda: calls.append(1)  # type: ignore[assignment]
    calls: list[int] = []
    assert (checkpointing._switched_on(with_switch), calls) == ("model.gradient_checkpointing_enable()", [1])


def test_activations_are_saved_on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", lambda pin_memory: used.append(pin_memory) or ExitStack())
    used: list[bool] = []
    with forward_passes.offload(True, facts := {}):
        Model()(torch.ones(1, 2))
    assert (used, "save_on_cpu" in facts["way"]) == ([True], True)


# ------------------------------------------------------------------------------------------------ optimizers
def test_optimizer_is_fused() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    with optimizers.fused(True, facts := {}):
        assert torch.optim.AdamW([weight], foreach=True).defaults["fused"]
    assert (facts["way"], facts["obstacle"]) == ("AdamW(..., fused=True)", "")
    with optimizers.fused(True, facts := {}):
        torch.optim.Adam([weight], fused=True)
    assert facts == {"obstacle": "the optimizer is fused already"}


def test_optimizer_is_replaced_where_it_is_constructed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"Adam8bit": type("Adam8bit", (), {"__new__": lambda cls, *args, **kwargs: SimpleNamespace(arguments=kwargs)})}
    library(monkeypatch, "bitsandbytes", optim=SimpleNamespace(**names, AdamW8bit=names["Adam8bit"]))
    library(monkeypatch, "bitsandbytes.optim", **names, AdamW8bit=names["Adam8bit"])
    weight, known = torch.nn.Parameter(torch.zeros(2)), torch.optim.Adam
    with optimizers.eight_bits(True, facts := {}):
        assert vars(known([weight], lr=0.5, fused=True)) == {"arguments": {"lr": 0.5}}
        assert isinstance(torch.optim.SGD([weight]), torch.optim.SGD)
    assert "bitsandbytes.optim.Adam8bit in place of torch.optim.Adam" in facts["way"]
    assert isinstance(known([weight]), known)


# ------------------------------------------------------------------------------------------------ all of them
def test_argument_of_library_is_set_at_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trainer:
        def __init__(self, **kwargs: Any) -> None:
            self.kwargs = kwargs

    library(monkeypatch, "pytorch_lightning.trainer.trainer", Trainer=Trainer)
    with ExitStack() as stack:
        set_argument(stack, "lightning", "precision", lambda own: "bf16-mixed" if own is None else None, facts := {})
        assert [Trainer().kwargs, Trainer(precision=16).kwargs] == [{"precision": "bf16-mixed"}, {"precision": 16}]
    assert (facts, Trainer().kwargs) == ({"way": "Trainer(precision='bf16-mixed')"}, {})


def test_rank_of_adapters_is_noted_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class LoraConfig:
        r = 8

        def __post_init__(self) -> None:
            pass

    library(monkeypatch, "peft.tuners.lora.config", LoraConfig=LoraConfig)
    for rank, now in ((None, 8), (64, 64)):
        with settings.RANK.install(rank, facts := {}):
            config = LoraConfig()
            config.__post_init__()
        assert (config.r, facts["value"], facts.get("now")) == (now, 8, rank)


def test_only_what_is_observed_is_installed_without_a_change() -> None:
    facts: dict[str, Any] = {}
    with registry.installed({}, facts):
        pass
    assert facts == {"batch": {}, "lora-rank": {}, "prompt": {}, "set-to-none": {}}
    assert len({change.name for change in registry.CHANGES}) == len(registry.CHANGES)
