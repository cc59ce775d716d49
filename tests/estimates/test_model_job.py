"""Jobs from what a notebook holds: a model's name, a data loader, a data set, an optimizer, and wrong keyword arguments."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import vramcast
from vramcast.core.errors import UsageError
from vramcast.estimates.model_job import JobOptions, job_of_model
from vramcast.hardware.cards import device
from vramcast.jobs.job import Job, TensorSpec
from vramcast.jobs.sizes import Sizes

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
CARD = device("t4")


class Pairs(torch.utils.data.Dataset):  # type: ignore[misc]
    """Ten samples of eight features and a class."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, place: int) -> tuple[Any, int]:
        return torch.full((8,), float(place)), place % 3


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def job(model: Any, batch: Any = None, **options: Any) -> Job:
    return job_of_model(model, batch, CARD, **options)


# ------------------------------------------------------------------------------------------------ names
def test_name_gets_sizes_and_adapter_of_command_line() -> None:
    found = job("hf:gpt2", batch_size=4, seq=512, lora="r=16", optimizer="adamw", precision="bf16")
    assert (found.target, found.sizes, found.training.optimizer) == ("hf:gpt2", Sizes(batch_size=4, seq=512), "adamw")
    assert found.adapter is not None
    assert found.adapter.r == 16


def test_name_takes_batch_instead_of_sizes() -> None:
    found = job("torchvision:resnet18", torch.zeros(4, 3, 64, 64), labels=torch.zeros(4, dtype=torch.int64), num_classes=10)
    assert (found.batch.shape, found.labels.shape, found.num_classes, found.sizes) == ((4, 3, 64, 64), (4,), 10, None)


def test_name_takes_specs_and_loss() -> None:
    found = job("torchvision:resnet18", "4x3x64x64", labels="4:int64:10", loss=torch.nn.CrossEntropyLoss())
    assert (found.batch, found.labels) == (TensorSpec((4, 3, 64, 64)), TensorSpec((4,), "int64", high=10))
    assert found.loss


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: job("hf:gpt2", TensorSpec((4, 8), "int64"), batch_size=4), "the batch gives the sizes"),
        (lambda: job("hf:gpt2", labels=TensorSpec((4,))), "labels needs batch"),
        (lambda: job("resnet18"), "torchvision:resnet18"),
        (lambda: job(net()), "batch is missing"),
        (lambda: job(net(), TensorSpec((4, 8)), seq=4), "seq is for a model's name"),
        (lambda: job(net(), Pairs()), "give batch_size too"),
        (lambda: job(net(), Pairs(), batch_size=99), "no full batch"),
        (lambda: job(net(), (x for x in [1])), "next(iter(loader))"),
        (lambda: job(net(), TensorSpec((4, 8)), optimizer=3), "an optimizer, its class, or a callable"),
        (lambda: vramcast.estimate("hf:gpt2", device="t4", on="a100-40gb"), "give one of them"),
        (lambda: vramcast.estimate("hf:gpt2", device="h200", on="t4"), "give one of them"),
    ],
)
def test_wrong_arguments_name_the_next_step(call: Callable[[], object], says: str) -> None:
    with pytest.raises(UsageError) as error:
        call()
    assert says in str(error.value)


# ------------------------------------------------------------------------------------------------ batches
def test_first_batch_of_loader_and_of_data_set() -> None:
    model, loader = net(), torch.utils.data.DataLoader(Pairs(), batch_size=4, shuffle=True, num_workers=2)
    of_torch, of_python, of_numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    for found in (job(model, loader), job(model, Pairs(), batch_size=4)):
        assert [(part.shape, part.dtype) for part in found.batch] == [((4, 8), "float32"), ((4,), "int64")]
    assert torch.equal(of_torch, torch.get_rng_state())
    assert of_python == random.getstate()
    assert (of_numpy == np.random.get_state()[1]).all()  # type: ignore[index]


def test_loader_of_varying_shapes_is_refused() -> None:
    texts = [torch.zeros(length, dtype=torch.int64) for length in (3, 4, 5, 6)]
    padded = torch.utils.data.DataLoader(texts, batch_size=2, collate_fn=lambda some: torch.nn.utils.rnn.pad_sequence(some).T)
    with pytest.raises(UsageError, match="vary in shape"):
        job(net(), padded)


def test_stream_that_cannot_restart_is_refused() -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return rows

    rows = iter(range(10))
    with pytest.raises(UsageError, match="cannot be started again"):
        job(net(), torch.utils.data.DataLoader(Stream(), batch_size=2))
    assert next(rows) == 0


def test_batches_of_other_kinds() -> None:
    @dataclass
    class Batch:
        x: Any
        y: Any

    tokens = pytest.importorskip("transformers").BatchEncoding({"input_ids": torch.zeros(2, 8, dtype=torch.int64)})
    assert job(net(), np.zeros((4, 8), "float32")).batch.shape == (4, 8)
    assert job(net(), tokens).batch["input_ids"].shape == (2, 8)
    assert job(net(), Batch(torch.zeros(4, 8), [np.zeros(3)])).batch.fields["x"].shape == (4, 8)


# ------------------------------------------------------------------------------------------------ optimizers
def made(optimizer: Any, model: Any) -> Any:
    """Return what the worker makes of an optimizer."""
    from vramcast.tracer.program.model_program import build_optimizer

    return build_optimizer(job(model, TensorSpec((4, 8)), optimizer=optimizer), model.parameters())


def test_optimizer_keeps_class_groups_and_options() -> None:
    model = net()
    model[0].bias.requires_grad_(False)
    groups = [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[2].parameters(), "lr": 0.5}]
    given = torch.optim.AdamW(groups, lr=0.2, betas=(0.8, 0.9), fused=False, foreach=True)
    found = made(given, model)
    assert type(found) is torch.optim.AdamW
    assert [[id(one) for one in group["params"]] for group in found.param_groups] == [
        [id(model[0].weight)], [id(model[2].weight), id(model[2].bias)],
    ]  # fmt: skip
    assert [(group["weight_decay"], group["lr"]) for group in found.param_groups] == [(0.1, 0.2), (0.01, 0.5)]
    assert [(group["betas"], group["foreach"]) for group in found.param_groups] == [((0.8, 0.9), True)] * 2


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "Adagrad", "Adafactor", "LBFGS"])
def test_every_optimizer_of_torch_is_made_again(name: str) -> None:
    model = net()
    given = getattr(torch.optim, name)(model.parameters(), lr=0.3)
    found = made(given, model)
    assert (type(found), found.defaults) == (type(given), given.defaults)


def test_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(UsageError, match="that is not the model's"):
        job(net(), TensorSpec((4, 8)), optimizer=torch.optim.SGD(net().parameters(), lr=1))
    with pytest.raises(UsageError, match="a callable that builds one"):
        job(net, TensorSpec((4, 8)), optimizer=torch.optim.SGD(net().parameters(), lr=1))


def test_loss_may_be_a_module() -> None:
    assert job(net(), TensorSpec((4, 8)), loss=torch.nn.CrossEntropyLoss()).loss


# ------------------------------------------------------------------------------------------------ keywords
def test_function_and_method_take_the_same_options() -> None:
    of_estimator = {"model", "batch", "device", "on", "tracer", "level", "artifact", "timeout_s", "stack", "host_memory"}
    assert set(inspect.signature(vramcast.estimate).parameters) - of_estimator == set(JobOptions.__annotations__)
