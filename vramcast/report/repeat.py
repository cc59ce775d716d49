"""The Python call that repeats an estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.jobs.job import Batch, Command, Job, Training, specs_in
from vramcast.jobs.targets import as_typed


def python_call(estimate: Estimate) -> str:
    """Return the call that gives the same estimate, with the options that differ from their defaults.

    The model, the batch and callables appear only by name; comments above the call describe the batch.
    """
    job = estimate.job
    options = {**_of_how(estimate), **_of_card(job)}
    if job.command is not None:
        return call("vramcast.estimate_command", (repr(_words(job.command)),), {**_of_course(job), **options})
    lines = [
        f"# {name}: {_described(value)}" for name, value in (("batch", job.batch), ("labels", job.labels)) if value is not None
    ]
    if job.target is not None:
        lines.append(f"# model: {as_typed(job.target)}")
    labels = {"labels": ...} if job.labels is not None else {}
    return "\n".join([*lines, call("vramcast.estimate", ("model", "batch"), {**labels, **_of_training(job), **options})])


def call(function: str, positional: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return a call as text; an option with the value `...` is a variable of the same name."""
    named = [f"{name}={name if value is ... else repr(value)}" for name, value in options.items()]
    return f"{function}({', '.join([*positional, *named])})"


def _of_training(job: Job) -> dict[str, Any]:
    found = {name: ... if isinstance(value, bytes) else value for name, value in job.training.changed.items()}
    if job.loss is not None:
        found["loss"] = ...
    if job.parallel is not None:
        found |= {"parallel": str(job.parallel), "world_size": job.parallel.world.size}
    return found


def _of_course(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = {"steps": job.training.steps} if job.training.steps != Training().steps else {}
    return found | ({"world_size": job.world.size} if job.world.size > 1 else {})


def _of_card(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = {"device": job.device.key}
    if job.memory_bytes is not None:
        found["memory"] = job.memory_bytes
    if job.alloc_conf:
        found["alloc_conf"] = job.alloc_conf
    if job.stack is not None:
        versions = {name: getattr(job.stack, name) for name in ("torch", "cudnn", "cuda", "transformers")}
        found["stack"] = ",".join(f"{name}=={version}" for name, version in versions.items() if version is not None)
    return found


def _of_how(estimate: Estimate) -> dict[str, Any]:
    estimator = estimate.estimator
    found: dict[str, Any] = {"tracer": estimate.tracer} if estimate.tracer != "nullgpu" else {}
    if estimator.level != Estimator.level:
        found["level"] = estimator.level
    if estimator.artifact is not None:
        found["artifact"] = str(estimator.artifact)
    return found


def _words(command: Command) -> list[str]:
    before = ["python", "-m"] if command.is_module else ["python", "-c"] if command.is_code else []
    return [*before, *command.words]


def _described(batch: Batch) -> str:
    """Return the tensors of a batch as text: `32x3x224x224 float32, 32 int64`."""
    return ", ".join(f"{'x'.join(map(str, one.shape)) or 'scalar'} {one.dtype}" for one in specs_in(batch)) or "nothing"
