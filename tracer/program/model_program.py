"""The job as a program: builds the model and runs the training loop, with the user's own order of things.

All tracers and the collector run this loop on their own `device`. It is plain PyTorch and does not depend on being
observed. References between steps are part of the job: as in a script's loop, the inputs, output and loss of one step live
until the next step assigns them again.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch.profiler import record_function

from vramcast.core import progress
from vramcast.core.errors import JobError, UsageError
from vramcast.core.progress import Stage
from vramcast.jobs import optimizers, targets
from vramcast.jobs.job import Batch, Job, Record, TensorSpec, map_batch
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.program import adapters, meta_model
from vramcast.tracer.program.task_inputs import by_scheme

DATA_RANGE = "vramcast:data"  # around moving a batch to the device; the recorder looks for it


# ------------------------------------------------------------------------------------------------ model
def build_model(job: Job) -> torch.nn.Module:
    """Return the job's module on the CPU, in the job's dtype and memory format, without touching its storage.

    Raises:
        UsageError: The target does not exist.
        JobError: Building the module raised.
    """
    progress.tell(Stage.IMPORTS)
    with meta_model.HollowInit():
        model = meta_model.loads(job.model) if job.model is not None else targets.build(job.target or "", job.num_classes)
        if not isinstance(model, torch.nn.Module):
            if not callable(model):
                by_name = ", or run vramcast estimate, which takes names" if isinstance(model, str) else ""
                raise UsageError(
                    f"The model is a {type(model).__name__}: pass an nn.Module or a callable that returns one{by_name}."
                )
            progress.tell(Stage.MODEL)
            model = model()
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"The model's factory returned a {type(model).__name__}: it must return an nn.Module.")
        if job.training.precision in ("bf16", "fp16"):
            model = model.to(torch.bfloat16 if job.training.precision == "bf16" else torch.float16)
        if job.training.channels_last:
            model = model.to(memory_format=torch.channels_last)
        if job.adapter is not None and job.adapter.is_quantized:
            model = adapters.quantized(model, job.training.precision)
        if job.training.checkpointing:
            _enable_checkpointing(model)
        if job.adapter is not None:
            model = adapters.with_adapters(model, job.adapter)
    try:
        return model.train(job.training.mode == "train")
    except NotImplementedError:  # a module of torch.export keeps the mode of its export and rejects another
        return model


def _enable_checkpointing(model: torch.nn.Module) -> None:
    for enable in (
        "activation_checkpointing_enable",  # transformers >= 5.24, which warns about its former name, the next
        "gradient_checkpointing_enable", "set_grad_checkpointing", "enable_gradient_checkpointing",
    ):  # fmt: skip
        if hasattr(model, enable):
            getattr(model, enable)()
            return
    raise UsageError(
        f"{type(model).__name__} has no switch for gradient checkpointing (Hugging Face's gradient_checkpointing_enable, "
        "timm's set_grad_checkpointing or diffusers' enable_gradient_checkpointing): build it into the model, "
        "without --checkpointing."
    )


# ------------------------------------------------------------------------------------------------ optimizer and loss
def build_optimizer(job: Job, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the job's optimizer over `parameters`.

    Raises:
        UsageError: There is no optimizer of that name, or it does not take the options.
    """
    trainable = [p for p in parameters if p.requires_grad]
    stated, lr = job.training.optimizer, job.training.lr
    if isinstance(stated, bytes):
        made = meta_model.loads(stated)
        if isinstance(made, type) and issubclass(made, torch.optim.Optimizer):
            return made(trainable, lr=lr)  # type: ignore[call-arg]
        optimizer: torch.optim.Optimizer = made(trainable)
        return optimizer
    name, options = optimizers.parse(stated)
    make = _optimizer_of_package(stated, name) if ":" in name else _optimizer_of_torch(stated, name)
    try:
        found: torch.optim.Optimizer = make(trainable, lr=lr, **options)
        return found
    except TypeError as error:
        raise UsageError(f"Optimizer '{stated}' does not take these options ({error}).") from None


def _optimizer_of_torch(stated: str, name: str) -> Any:
    known = {
        n.lower(): c
        for n, c in vars(torch.optim).items()
        if isinstance(c, type) and issubclass(c, torch.optim.Optimizer) and c is not torch.optim.Optimizer
    }
    if name not in known:
        names = sorted([*known, *optimizers.SHORT_NAMES])
        close = difflib.get_close_matches(name, names, n=6)
        close.sort(key=lambda one: one not in optimizers.OPTIMIZERS)  # the most used first
        hint = f"did you mean {' or '.join(close[:2])}? Or " if close else ""
        raise UsageError(f"Optimizer '{stated}' is unknown: {hint}use one of {', '.join(names)}, or module:Class.")
    return known[name]


def _optimizer_of_package(stated: str, place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UsageError(f"Optimizer '{stated}' needs the package {package} ({error}): pip install {package}.") from None
    if not callable(found):
        raise UsageError(f"Optimizer '{stated}': {module} has no class {name}.")
    return found


def first_float(output: Any) -> torch.Tensor | None:
    """Return the tensor for the loss: `.logits`, `["out"]`, or the first floating tensor inside `output`."""
    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() or output.is_complex() else None
    if getattr(output, "logits", None) is not None and isinstance(output.logits, torch.Tensor):
        return output.logits
    values: Iterable[Any] = ()
    if isinstance(output, dict):
        values = ([output["out"]] if "out" in output else []) + list(output.values())
    elif isinstance(output, (tuple, list)):
        values = output
    return next((found for value in values if (found := first_float(value)) is not None), None)


def _total(losses: Iterable[Any]) -> torch.Tensor | None:
    scalars = [v for v in losses if isinstance(v, torch.Tensor) and v.numel() == 1 and v.requires_grad]
    return sum(scalars[1:], scalars[0]) if scalars else None


def default_loss(output: Any, labels: Any, stated: Any = None) -> torch.Tensor:
    """Return the loss by the kind of output.

    Args:
        output: The model's return value.
        labels: The labels, on the job's device.
        stated: The TensorSpec of the labels, with the values that a card would look up among the classes.
    Raises:
        UsageError: The labels do not fit the output, by their shape or by a value.

    Numbered cases, in this order:
      1. the model's own `.loss` (Hugging Face);
      2. a dict of scalar losses (torchvision detection models in training): their sum;
      3. floating scores and integer labels: cross-entropy (scores N x C x ..., labels N x ...);
      4. floating scores and floating labels of the same shape: mean squared error;
      5. otherwise the mean of the output.
    """
    own = getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    if isinstance(output, dict) and labels is None and (total := _total(output.values())) is not None:
        return total
    scores = first_float(output)
    if scores is None:
        raise JobError(f"The model's output ({type(output).__name__}) holds no floating tensor to train on: give a loss.")
    if isinstance(labels, torch.Tensor):
        if not labels.is_floating_point() and labels.shape == scores.shape[:1] + scores.shape[2:]:
            _check_classes(stated, scores.shape[1])
            return torch.nn.functional.cross_entropy(scores, labels)
        if not labels.is_floating_point() and labels.shape == scores.shape[:-1]:
            _check_classes(stated, scores.shape[-1])
            return torch.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))
        if labels.shape == scores.shape:
            return torch.nn.functional.mse_loss(scores, labels.to(scores.dtype))
        raise UsageError(
            f"The labels {tuple(labels.shape)} ({labels.dtype}) do not fit the output {tuple(scores.shape)}: "
            "cross-entropy expects integer labels without the class dimension; or give a loss."
        )
    return scores.abs().mean() if scores.is_complex() else scores.mean()


_NO_CLASS = -100  # spec: ignore_index of torch.nn.functional.cross_entropy


def _check_classes(stated: Any, n_classes: int) -> None:
    """Raise if labels name a nonexistent class: a card asserts that, a null GPU or a fake tensor does not notice."""
    values = stated.integers() if isinstance(stated, TensorSpec) else ()
    wrong = next((value for value in values if value != _NO_CLASS and not 0 <= value < n_classes), None)
    if wrong is not None:
        raise UsageError(
            f"The labels hold {wrong}, but the output has {n_classes} classes, counted from 0: a GPU would stop with an "
            f"assert. {_NO_CLASS} is a label that is ignored."
        )


# ------------------------------------------------------------------------------------------------ the loop
def host_tensor(job: Job, spec: TensorSpec, write: Callable[[torch.Tensor], object]) -> torch.Tensor:
    """Return a CPU tensor for `spec`, in the job's precision and format: with its content, or else filled by `write`."""
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(job.training.precision)
    dtype = getattr(torch, spec.dtype)
    tensor = torch.empty(spec.shape, device="cpu", dtype=low if low is not None and dtype == torch.float32 else dtype)
    if spec.content is None:
        write(tensor)
    elif spec.content:
        tensor.copy_(torch.frombuffer(bytearray(spec.content), dtype=dtype).view(spec.shape))
    return tensor.contiguous(memory_format=torch.channels_last) if job.training.channels_last and tensor.dim() == 4 else tensor


WriteInput: TypeAlias = Callable[[torch.Tensor, TensorSpec], None]


def write_stated(tensor: torch.Tensor, spec: TensorSpec) -> None:
    """Fill a batch's tensor by its `fill`; without one, integers lie below their limit and floats between 0 and 1.

    Big floats are never written, and complex numbers are 0.
    """
    if (tensor.is_floating_point() or tensor.is_complex()) and tensor.nbytes >= meta_model.BIG_BYTES:
        return
    # arbitrary: the seed; the job's own random state is left unchanged
    _write(tensor, spec, 0.0, torch.Generator().manual_seed(0))


def write_input(tensor: torch.Tensor, spec: TensorSpec) -> None:
    """Fill a batch's tensor for a job that really computes, on a GPU or on the CPU: like `write_stated`, but big floats
    too.
    """
    _write(tensor, spec, 0.5, None)


def _write(tensor: torch.Tensor, spec: TensorSpec, of_complex: float, seeded: torch.Generator | None) -> None:
    if spec.fill is not None:
        tensor.fill_(spec.fill)
    elif tensor.is_floating_point():
        tensor.uniform_(generator=seeded)
    elif tensor.is_complex():
        tensor.fill_(of_complex)
    elif spec.high is not None:
        tensor.random_(max(spec.high, 1), generator=seeded)
    else:
        tensor.zero_()


def fill_weights(model: torch.nn.Module) -> None:
    """Fill the tensors left untouched by `HollowInit`, in place, with small values of both signs. Allocates nothing.

    If kernels run, arbitrary memory contents might be NaNs that reach a branch, a sort or a gradient scaler.
    """
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.nbytes >= meta_model.BIG_BYTES and tensor.is_floating_point():
                tensor.uniform_(-0.02, 0.02)  # arbitrary: near the usual initial values


def host_batch(job: Job, batch: Batch, write: WriteInput = write_stated) -> Any:
    """Return `batch` as CPU tensors; `write` fills those without stated values."""

    def make(leaf: Any) -> Any:
        return host_tensor(job, leaf, lambda tensor: write(tensor, leaf)) if isinstance(leaf, TensorSpec) else leaf

    return map_batch(batch, make)


def to_device(batch: Any, device: torch.device) -> Any:
    """Return `batch` with every tensor moved to `device`."""
    return map_batch(batch, lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf)


def assembled(batch: Any, device: torch.device) -> Any:
    """Return a batch on `device` with the user's own objects in place of Records."""
    if isinstance(batch, dict):
        return {key: assembled(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(assembled(value, device) for value in batch)
    if not isinstance(batch, Record):
        return batch
    made = meta_model.loads(batch.maker)(**assembled(batch.fields, device))
    return made if batch.fields or not callable(getattr(made, "to", None)) else made.to(device)


def split_labels(model: torch.nn.Module, batch: Batch) -> tuple[Batch, Any]:
    """Return (the model's inputs, labels) of a tuple batch if its last element does not fit the model's forward.

    `(x, y)` for a model with `forward(x)` means input and labels; for `forward(a, b)` both are inputs.
    """
    if not isinstance(batch, (tuple, list)) or hasattr(batch, "_fields") or len(batch) < 2:
        return batch, None
    try:
        inspect.signature(model.forward).bind(*batch)
    except TypeError:
        return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]
    except ValueError:
        pass
    return batch, None


def _call(model: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)) and not hasattr(inputs, "_fields"):
        return model(*inputs)
    return model(inputs)


@dataclass(frozen=True, slots=True)
class Hooks:
    """The parts of the loop that a tracer can replace.

    Attributes:
        build_model: Returns the job's module on the CPU.
        to_ranks: Returns the module on the device of one rank of many, spread over all; None: the job has one rank.
        host_batch: Returns a batch as CPU tensors.
        to_device: Returns a batch of CPU tensors on the device.
        on_model: Called with the model once it is on the device.
    """

    build_model: Callable[[Job], torch.nn.Module] = build_model
    to_ranks: Callable[[torch.nn.Module, torch.device], torch.nn.Module] | None = None
    host_batch: Callable[[Job, Batch], Any] = host_batch
    to_device: Callable[[Any, torch.device], Any] = to_device
    on_model: Callable[[torch.nn.Module], object] = lambda model: None


def run(job: Job, device: torch.device, hooks: Hooks | None = None) -> Inputs | None:
    """Run the whole job on `device`: build, move, and `job.training.steps` steps.

    Args:
        job: The job; not a script.
        device: The device for the training.
        hooks: Replaced parts of the loop.
    Returns:
        The inputs that were made from the job's sizes, and its adapters; None: it has neither.
    Raises:
        UsageError, JobError: See the parts above; exceptions of the user's code pass through.
        torch.OutOfMemoryError: The card is full.
    """
    hooks = hooks or Hooks()
    torch.backends.cudnn.benchmark = job.training.cudnn_benchmark
    torch.manual_seed(0)  # arbitrary: two runs shall agree even if shapes depend on values
    model = hooks.build_model(job)
    made = by_scheme.inputs_of(job, model)
    if job.adapter is not None:
        adapted = adapters.adapted_of(model, job.adapter)
        made = replace(made or Inputs(job.batch, job.labels, job.sizes), adapted=adapted)
    job = job.with_inputs(made)
    batch, labels_batch = split_labels(model, job.batch)
    model = model.to(device) if hooks.to_ranks is None else hooks.to_ranks(model, device)
    hooks.on_model(model)
    if job.labels is not None:
        labels_batch = job.labels
    inputs_host, labels_host = hooks.host_batch(job, batch), hooks.host_batch(job, labels_batch)
    if job.training.mode == "infer":
        _infer(job, device, hooks, model, inputs_host)
    else:
        _train(job, device, hooks, model, inputs_host, labels_host, labels_batch)
    return made


def _autocast(job: Job, device: torch.device) -> Any:
    if job.parallel is not None and job.parallel.is_sharded:  # its parameters are gathered in the lower precision
        return nullcontext()
    dtype = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(job.training.precision)
    return torch.autocast(device.type, dtype=dtype) if dtype is not None else nullcontext()


def _infer(job: Job, device: torch.device, hooks: Hooks, model: torch.nn.Module, inputs_host: Any) -> None:
    with torch.no_grad():
        for step in range(job.training.steps):
            progress.tell(Stage.STEPS, step + 1, job.training.steps)
            with record_function(DATA_RANGE):
                inputs = assembled(hooks.to_device(inputs_host, device), device)
            with _autocast(job, device):
                output = _call(model, inputs)
    del output


def _train(
    job: Job, device: torch.device, hooks: Hooks, model: torch.nn.Module, inputs_host: Any, labels_host: Any,
    labels_stated: Any,
) -> None:  # fmt: skip
    optimizer = build_optimizer(job, model.parameters())
    scaler = None
    if job.training.precision == "amp-fp16":
        # arbitrary: a scale of 1, so that no step is skipped because of overflow; the scale's value moves no memory
        scaler = torch.amp.GradScaler(device.type, init_scale=1.0)
    loss_of: Callable[[Any, Any], torch.Tensor] = functools.partial(default_loss, stated=labels_stated)
    if job.loss is not None:
        loss_of = meta_model.loads(job.loss)
        if isinstance(loss_of, torch.nn.Module):
            loss_of.to(device)  # the weights of its classes
    compared_with_batch = job.loss is not None and labels_host is None

    def evaluate(inputs: Any, labels: Any) -> torch.Tensor:
        """Return the loss with its gradients, for an optimizer that evaluates it any number of times."""
        optimizer.zero_grad()
        with _autocast(job, device):
            loss = loss_of(_call(model, inputs), inputs if compared_with_batch else labels)
        loss.backward()
        return loss

    # LBFGS: its step requires a function where the others accept None.
    asked = inspect.signature(type(optimizer).step).parameters.get("closure")
    wants_closure = asked is not None and asked.default is inspect.Parameter.empty
    for step in range(job.training.steps):
        progress.tell(Stage.STEPS, step + 1, job.training.steps)
        if job.training.zero_grad == "step-start":
            optimizer.zero_grad()
        if not job.training.overlap_inputs:
            inputs = labels = None
        with record_function(DATA_RANGE):
            inputs = assembled(hooks.to_device(inputs_host, device), device)
            labels = assembled(hooks.to_device(labels_host, device), device)
        if wants_closure:
            optimizer.step(functools.partial(evaluate, inputs, labels))  # type: ignore[arg-type]
            continue
        with _autocast(job, device):
            output = _call(model, inputs)
            loss = loss_of(output, inputs if compared_with_batch else labels)
        if job.training.zero_grad == "before-backward":
            optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if job.training.zero_grad == "after-step":
            optimizer.zero_grad()
