"""The axes of a model that is given as a TARGET or as an object."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from vramcast.core.errors import UsageError
from vramcast.estimates.axes.axis import JobAxis
from vramcast.jobs.adapters import Adapter
from vramcast.jobs.job import Job, specs_in
from vramcast.tracer.program.variations import accumulate

AXES_OF_MODEL: Final = ("batch", "accumulate", "seq", "image-size", "lora-rank")
_SIZES: Final = {"seq": "seq", "image-size": "image_size"}
_RANK: Final = 8  # spec: peft.LoraConfig, the default of r


def axis_of_model(job: Job, name: str) -> JobAxis:
    """Return an axis of a model's job, as it was estimated.

    Raises:
        UsageError: The job has no such axis.
    """
    if name in _SIZES:
        own = None if job.sizes is None else getattr(job.sizes, _SIZES[name])
        if own is None:
            raise UsageError(f"The inputs of this model have no {name}: choose another --axis, such as batch.")
        return _axis(name, own, lambda value: job.with_sizes(**{_SIZES[name]: value}))
    if name == "lora-rank":
        if job.adapter is None:
            raise UsageError("The job trains no LoRA adapters: add --lora r=8, or choose another --axis.")
        adapter: Adapter = job.adapter
        return _axis(name, adapter.r or _RANK, lambda value: replace(job, adapter=replace(adapter, r=value)))
    batch = batch_of(job)
    if name == "batch":
        return _axis(name, batch, job.with_batch)
    limit, way = f"the global batch of {batch}", f"a batch of {{}}, with gradients accumulated up to {batch}"
    values, job_at = divisors(batch), functools.partial(_accumulating, job, batch)
    return JobAxis(name, batch, job_at, lambda value, _: way.format(value), most=batch, limit=limit, values=values)


def batch_of(job: Job) -> int:
    """Return the batch size of a model's job.

    Raises:
        UsageError: Its inputs do not have one.
    """
    if job.sizes is not None and job.sizes.batch_size is not None:
        return job.sizes.batch_size
    sizes = {spec.shape[0] for spec in specs_in(job.batch, job.labels) if spec.shape}
    if len(sizes) != 1 or not min(sizes):
        raise UsageError(f"The inputs have first dimensions {sorted(sizes)}, so there is no batch size to change.")
    return sizes.pop()


def divisors(whole: int) -> tuple[int, ...]:
    """Return the divisors of a number, ascending."""
    return tuple(value for value in range(1, whole + 1) if whole % value == 0)


def _accumulating(job: Job, batch: int, value: int) -> Job:
    smaller = job.with_batch(value)
    return accumulate(smaller, batch // value) if value < batch and job.training.mode == "train" else smaller


def _axis(name: str, own: int, job_at: Callable[[int], Job]) -> JobAxis:
    option = {"lora-rank": "--lora r=", "batch": "--batch-size "}.get(name, f"--{name} ")
    return JobAxis(name, own, job_at, lambda value, _: f"{option}{value}")
