"""The job of a model object and a batch, described without weights so that it can be sent to a worker, or of a model's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final, TypedDict

from vramcast.core.errors import UsageError
from vramcast.core.text import shown
from vramcast.estimates.batch_description import described
from vramcast.estimates.first_batch import first_batch, is_dataset, is_loader, of_dataset
from vramcast.hardware.device import Device
from vramcast.jobs.adapters import parse as parse_adapter
from vramcast.jobs.job import Job, Mode, Precision, Training, ZeroGrad
from vramcast.jobs.sizes import SIZES
from vramcast.jobs.targets import resolved
from vramcast.jobs.text import JobText

_OF_TRAINING: Final = frozenset(one.name for one in fields(Training))
_OF_A_NAME: Final = (*SIZES, "num_classes", "lora", "qlora")


class JobOptions(TypedDict, total=False):
    """The arguments of `vramcast.estimate` that describe the job; see there."""

    labels: Any
    loss: Callable[..., Any] | None
    optimizer: Any
    lr: float
    precision: Precision
    mode: Mode
    steps: int
    zero_grad: ZeroGrad
    overlap_inputs: bool
    checkpointing: bool
    channels_last: bool
    cudnn_benchmark: bool
    memory: int | str | None
    alloc_conf: str | None
    parallel: str | None
    world_size: int | None
    nproc_per_node: int | None
    batch_size: int | None
    seq: int | None
    image_size: int | None
    num_classes: int | None
    lora: str | None
    qlora: str | None


def job_of_model(
    model: Any, batch: Any, card: Device | None, *, labels: Any = None, loss: Callable[..., Any] | None = None,
    optimizer: Any = "adam", **options: Any,
) -> Job:  # fmt: skip
    """Return the job of training (or running) `model` on `batch`; see `vramcast.estimate` for the arguments.

    Args:
        options: Other fields of `Training`, and the fields of `JobText` that apply to a model.
    Raises:
        UsageError: An argument is wrong.
    """
    from vramcast.tracer.program import meta_pickle

    if loss is not None and not callable(loss):
        raise UsageError(f"loss is {shown(loss)}: give a callable, loss(output, labels).")
    by_name = {name: value for name in _OF_A_NAME if (value := options.pop(name, None)) is not None}
    of_training = {name: options.pop(name) for name in _OF_TRAINING & options.keys()}
    training = Training(optimizer=_optimizer(optimizer, model), **of_training)
    pickled_loss = meta_pickle.dumps(loss) if loss is not None else None
    if isinstance(model, str):
        text = JobText(target=resolved(model), training=training, **by_name, **options).asked()
        return replace(_of_name(text, batch, labels, card), loss=pickled_loss)
    batch = _one_batch(batch, by_name)
    text = JobText(training=training, **options).asked()
    return text.around(card, model=meta_pickle.dumps(model), loss=pickled_loss, **_described(batch, labels))


def _of_name(text: JobText, batch: Any, labels: Any, card: Device | None) -> Job:
    """Return the job of a TARGET: its inputs follow from its task, from SPECs as text, or from tensors."""
    specs = (batch,) if isinstance(batch, str) else batch
    if batch is None or (isinstance(specs, tuple | list) and specs and all(isinstance(one, str) for one in specs)):
        if not isinstance(labels, str | None):
            raise UsageError("labels needs batch: without it, the model's task gives inputs and labels. Omit labels.")
        return replace(text, batch=tuple(specs or ()), labels=labels).job(card)
    _refuse_sizes([name for name in SIZES if getattr(text, name) is not None])
    adapter = parse_adapter(text.lora, text.qlora)
    return text.around(card, target=text.target, num_classes=text.num_classes, adapter=adapter, **_described(batch, labels))


def _described(batch: Any, labels: Any) -> dict[str, Any]:
    return {"batch": described(batch), "labels": described(labels, "labels") if labels is not None else None}


def _one_batch(batch: Any, by_name: dict[str, Any]) -> Any:
    """Return the batch, or the first one of a data loader or a data set."""
    if batch is None:
        raise UsageError(
            "batch is missing: pass an example, or describe one with TensorSpec((32, 3, 224, 224)). Only a model's name, such "
            "as 'hf:gpt2', needs none."
        )
    if is_dataset(batch):
        if "batch_size" not in by_name:
            raise UsageError(f"batch is a data set ({type(batch).__name__}): give batch_size too, for example batch_size=32.")
        batch = of_dataset(batch, by_name.pop("batch_size"))
    _refuse_sizes(list(by_name))
    return first_batch(batch) if is_loader(batch) else batch


def _refuse_sizes(given: list[str]) -> None:
    if given:
        raise UsageError(
            f"{', '.join(given)} is for a model's name without a batch, such as 'hf:gpt2': the batch gives the sizes."
        )


def _optimizer(optimizer: Any, model: Any) -> str | bytes:
    """Return the name of an optimizer, or the callable that makes it, pickled."""
    from vramcast.tracer.program import meta_pickle

    if isinstance(optimizer, str):
        return optimizer
    if hasattr(optimizer, "param_groups"):
        from vramcast.estimates.remade_optimizer import remade  # imports torch, which the caller has imported

        optimizer = remade(optimizer, model)
    if not callable(optimizer):
        raise UsageError(
            f"optimizer is {shown(optimizer)}: give a name of torch.optim, an optimizer, its class, or a callable."
        )
    return meta_pickle.dumps(optimizer)
