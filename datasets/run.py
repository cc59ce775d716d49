"""One measured run: what ran, who measured it on what, and what came out. Plain data; `datasets/DATASHEET.md` has the schema.

Unknown is None, never 0. Bytes are int. The three peaks are those of the contract: `allocated`, `reserved`, `process`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from vramcast.core.errors import DatasetError, UsageError
from vramcast.core.plain import from_plain, to_plain
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack, of_passport
from vramcast.jobs.job import CHOICES, Job, KnownTraining
from vramcast.jobs.targets import inlined, refusal
from vramcast.jobs.text import JobText

SCHEMA = 1
DRY_RUN = "vramcast measure --dry-run"  # a passport's `measured_by` of what must never pass for a measurement
Status = Literal["ok", "oom", "error", "killed", "timeout", "unknown"]


@dataclass(frozen=True, slots=True)
class Workload(KnownTraining):
    """What ran, as far as it is known.

    Attributes:
        name: How a person calls it: a target, a script, a cluster's job name.
        family: What groups are split by: `mlp`, `cnn`, `transformer`, `torchvision`, `timm`, `hf`, `script`, ...
        target: As in `Job`.
        script: The script and its arguments.
        script_sha256: Of the script's text.
        model_sha256: Of the modules' and parameters' names, types, shapes: the structure, not the weights.
        features: Of the model: `parameters`, `parameter_bytes`, `buffer_bytes`, `layers.Conv2d`, ...
        batch: Input tensors as the command line writes them: `32x3x224x224`, `input_ids=8x128:int64<30522`.
        labels: What the loss compares with, in the same way.
        cap_bytes: The allocator's limit in this run (`set_per_process_memory_fraction`): stands for a smaller card.
        user: Who submitted it, where a history says so.
        gpus: How many cards the peaks are summed over; None: unknown.
        batch_size: Where the tensors themselves are not known.
    The other fields are `Job`'s and `Training`'s; None: unknown.
    """

    name: str
    family: str | None = None
    target: str | None = None
    script: tuple[str, ...] | None = None
    script_sha256: str | None = None
    model_sha256: str | None = None
    features: dict[str, float] = field(default_factory=dict)
    batch: tuple[str, ...] = ()
    labels: str | None = None
    batch_size: int | None = None
    num_classes: int | None = None
    alloc_conf: str | None = None
    cap_bytes: int | None = None
    user: str | None = None
    gpus: int | None = None

    def __post_init__(self) -> None:
        for what, known in CHOICES.items():
            if (value := getattr(self, what)) is not None and value not in known:
                raise DatasetError(f"workload.{what} is {value!r}: one of {', '.join(known)} is expected.")
        for what, count in (("steps", self.steps), ("gpus", self.gpus), ("batch_size", self.batch_size)):
            if count is not None and count < 1:
                raise DatasetError(f"workload.{what} is {count}: at least 1 is expected, or null where it is unknown.")
        _check("workload", {"cap_bytes": self.cap_bytes}, may_be_zero=True)

    def job(self, device: Device, *, trust: bool = False, stack: Stack | None = None) -> Job:
        """Return this workload as a job for `device`; what is unknown takes `Job`'s defaults.

        Args:
            device: The card to estimate for.
            trust: Whether the target may be code, or open files. A data set is a file which people share: the user says so.
            stack: Software of the card's machine; None: what is installed here.
        Raises:
            UsageError: it has no target or no batch, so nothing can be run; or its target is not trusted.
        """
        if self.target is None or not self.batch:
            raise UsageError(f"'{self.name}' has no target and batch: only the peaks of this run are known, not its job.")
        if not trust and (reason := refusal(self.target)):
            raise UsageError(f"'{self.name}' is not run: {reason}")
        return JobText(
            target=self.target, batch=self.batch, labels=self.labels or None, num_classes=self.num_classes,
            training=self.training(), alloc_conf=self.alloc_conf or "", stack=stack,
        ).job(device)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Passport:
    """Who measured, on what, when and how.

    Attributes:
        measured_by: The program: `vramcast measure`, `sacct`, `jobstats`, ...
        how: What the process peak is: `nvml process`, `nvml device minus before`, `nvidia-smi device`, `slurm gpumem`, ...
        period_ms: Time between two samples of the process peak.
        date: ISO 8601, UTC.
        gpu: As torch or nvidia-smi prints it.
        gpu_total_bytes: As torch sees it.
        libraries: Name -> version of what the job used beside torch.
        host: A name for the machine, or a hash of one.
        source: File or address which the row was read from.
        licence: Of the source, where it is not the site's own.
    """

    measured_by: str
    how: str | None = None
    period_ms: float | None = None
    date: str | None = None
    gpu: str | None = None
    gpu_total_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    torch: str | None = None
    python: str | None = None
    libraries: dict[str, str] = field(default_factory=dict)
    host: str | None = None
    platform: str | None = None
    vramcast: str | None = None
    source: str | None = None
    licence: str | None = None

    @property
    def stack(self) -> Stack | None:
        """torch, CUDA and cuDNN of the machine; what it does not say of them is that of its torch's default wheel.

        None: nothing is known.
        """
        return of_passport(self.torch, self.cuda, self.cudnn)

    def __post_init__(self) -> None:
        _check("passport", {"gpu_total_bytes": self.gpu_total_bytes}, may_be_zero=False)
        _check("passport", {"period_ms": self.period_ms}, may_be_zero=True)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came out.

    Attributes:
        status: `ok`; `oom`: torch or the cluster said so; `error`: the job's own code raised; `killed`, `timeout`: from
            outside; `unknown`: the source does not say.
        allocated_bytes: Peak of live blocks, `max_memory_allocated`.
        reserved_bytes: Peak of segments, `max_memory_reserved`.
        process_bytes: Peak which the driver charges to the job.
        device_bytes: Peak of the whole card's used memory, others included.
        context_bytes: The process's memory before the first tensor.
        censored: The peaks are lower bounds: the job wanted more (out of memory), or was not watched to its peak.
        oom_requested_bytes: The request which failed.
        retries, ooms, segments: The allocator's counters; `segments` is a peak.
        steps: Steps done.
        step_ms: Time of each, the card synchronised.
        samples: How often the process peak was sampled.
        repeat_of: The run which this one repeats.
        workers: Jobs which shared the card at the time, this one included.
        workspaces: (operator, bytes) of blocks which convolutions took and gave back at once, in order, repeats left out.
        seconds: Of the whole run.
        message: The error's text; or what a reader of the source should know.
    """

    status: Status
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    process_bytes: int | None = None
    device_bytes: int | None = None
    context_bytes: int | None = None
    censored: bool = False
    oom_requested_bytes: int | None = None
    retries: int | None = None
    ooms: int | None = None
    segments: int | None = None
    steps: int | None = None
    step_ms: tuple[float, ...] = ()
    samples: int | None = None
    repeat_of: str | None = None
    workers: int | None = None
    workspaces: tuple[tuple[str, int], ...] = ()
    seconds: float | None = None
    message: str = ""

    def __post_init__(self) -> None:
        for names, may_be_zero in (
            (("allocated_bytes", "reserved_bytes", "process_bytes", "device_bytes"), False),
            (("context_bytes", "oom_requested_bytes", "retries", "ooms", "segments", "steps", "seconds"), True),
        ):
            _check("measurement", {name: getattr(self, name) for name in names}, may_be_zero=may_be_zero)
        if self.status == "oom" and not self.censored:
            raise DatasetError("measurement.status is 'oom' and censored is false: what ran out of memory wanted more.")
        allocated, reserved = self.allocated_bytes, self.reserved_bytes
        if allocated is not None and reserved is not None and allocated > reserved:
            raise DatasetError(
                f"measurement.allocated_bytes {allocated} is above reserved_bytes {reserved}: they are mixed up."
            )


@dataclass(frozen=True, slots=True)
class Run:
    """One row of a data set. `id` is unique in its set; equal ids are the same run."""

    id: str
    workload: Workload
    passport: Passport
    measurement: Measurement
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        return to_plain(self)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, values: Any) -> Run:
        """Return the run which `to_dict` of this or an older version wrote.

        Raises:
            DatasetError: not such a row; the message names the field.
        """
        if not isinstance(values, dict):
            raise DatasetError(f"A run is an object, this is {str(values)[:60]!r}.")
        return from_plain(cls, upgraded(values), "run")


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """Return a row of any schema so far in today's schema.

    A new version adds its step here: old rows stay readable for ever.

    Raises:
        DatasetError: the row is newer than this vramcast, or says no version.
    """
    version = values.get("schema")
    if isinstance(version, bool) or not isinstance(version, int) or not version >= 1:
        raise DatasetError(f"run.schema is {str(version)[:40]!r}: 1 to {SCHEMA} is expected.")
    if version > SCHEMA:
        raise DatasetError(f"run.schema is {version}, this vramcast reads up to {SCHEMA}: install a newer one.")
    return values


def with_source(run: Run, source: str) -> Run:
    """Return the run with the file it was read from in its passport."""
    return replace(run, passport=replace(run.passport, source=source))


def with_config(run: Run, folder: Path) -> Run:
    """Return a run whose target names a config in `folder` with the config itself: the same wherever it is read."""
    if run.workload.target is None:
        return run
    return replace(run, workload=replace(run.workload, target=inlined(run.workload.target, folder)))


def _check(where: str, values: dict[str, Any], *, may_be_zero: bool) -> None:
    """Refuse numbers which are negative, infinite, or 0 where that says that nothing was measured."""
    for name, value in values.items():
        if value is not None and not (0 < value < math.inf or (may_be_zero and value == 0)):
            least = "0 or more" if may_be_zero else "more than 0"
            raise DatasetError(f"{where}.{name} is {value}: {least} is expected, or null where it is unknown.")
