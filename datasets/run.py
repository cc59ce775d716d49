"""One measured run: the workload, the machine, and the results; `datasets/DATASHEET.md` has the schema.

Unknown is None, never 0. Bytes are int. The three peaks are those of an estimate: `allocated`, `reserved`, `process`.
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
from vramcast.jobs.optimizers import is_code
from vramcast.jobs.sizes import SIZES
from vramcast.jobs.targets import REGISTRIES, TRUST, inlined, refusal
from vramcast.jobs.text import JobText

SCHEMA = 1
DRY_RUN = "vramcast measure --dry-run"  # the passport's `measured_by` for rows that must never pass for measurements
_OF_IMAGES = ("torchvision", "timm")
Status = Literal["ok", "oom", "error", "killed", "timeout", "unknown"]


@dataclass(frozen=True, slots=True)
class Workload(KnownTraining):
    """The job that ran, as far as it is known.

    Attributes:
        name: Name for people: a target, a script, a cluster's job name.
        family: Group for evaluations: `mlp`, `cnn`, `transformer`, `torchvision`, `timm`, `hf`, `script`, ...
        target: As in `Job`.
        script: The script and its arguments.
        script_sha256: Hash of the script's text.
        model_sha256: Hash of the modules' and parameters' names, types, shapes: the structure, not the weights.
        features: Features of the model: `parameters`, `parameter_bytes`, `buffer_bytes`, `layers.Conv2d`, ...
        batch: Input tensors in the form of the command line: `32x3x224x224`, `input_ids=8x128:int64<30522`.
        labels: Labels for the loss, in the same form.
        cap_bytes: The allocator's limit in this run (`set_per_process_memory_fraction`), which simulates a smaller card.
        user: The user who submitted it, if a history has it.
        gpus: Number of cards that the peaks are summed over; None: unknown.
        batch_size, seq, image_size: Used if the tensors themselves are unknown, for a model of a registry.
    The other fields are those of `Job` and `Training`; None: unknown.
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
    seq: int | None = None
    image_size: int | None = None
    num_classes: int | None = None
    alloc_conf: str | None = None
    cap_bytes: int | None = None
    user: str | None = None
    gpus: int | None = None

    def __post_init__(self) -> None:
        for what, known in CHOICES.items():
            if (value := getattr(self, what)) is not None and value not in known:
                wanted = f"one of {', '.join(known)}"
                raise DatasetError(
                    f"workload.{what} is {value!r}, but must be {wanted}.", kind=f"workload.{what} is not {wanted}"
                )
        for what, count in (("steps", self.steps), ("gpus", self.gpus), *((one, getattr(self, one)) for one in SIZES)):
            if count is not None and count < 1:
                raise DatasetError(
                    f"workload.{what} is {count}, but must be at least 1, or null if it is unknown.",
                    kind=f"workload.{what} is below 1",
                )
        _check("workload", {"cap_bytes": self.cap_bytes}, may_be_zero=True)

    def job(self, device: Device, *, trust: bool = False, stack: Stack | None = None) -> Job:
        """Return this workload as a job for `device`; unknown fields get the defaults of `Job`.

        Args:
            device: The card to estimate for.
            trust: Whether the target may be code, or open files. Data sets are shared files, so this is the user's
                decision.
            stack: Software of the card's machine; None: the software installed here.
        Raises:
            UsageError: It has no target or no batch, so nothing can be run; or its target is not trusted.
        """
        if self.target is None or not self.has_inputs:
            raise UsageError(
                f"'{self.name}' has no target and batch: only the peaks of this run are known, so it cannot be run again."
            )
        if not trust and (reason := refusal(self.target)):
            raise UsageError(f"'{self.name}' is not run: {reason}")
        if not trust and is_code(self.optimizer or ""):
            raise UsageError(f"'{self.name}' is not run: its optimizer is code: {TRUST}")
        return JobText(
            target=self.target, batch=self.batch, labels=self.labels or None, num_classes=self.num_classes, **self._sizes,
            training=self.training(), alloc_conf=self.alloc_conf or "", stack=stack,
        ).job(device)  # fmt: skip

    @property
    def has_inputs(self) -> bool:
        """True if the inputs are known: as tensors, or by sizes."""
        return bool(self.batch or self._sizes)

    @property
    def _sizes(self) -> dict[str, Any]:
        """The sizes from which a registry's model gets its inputs; {}: the tensors are known, or a size that matters is not.

        A default would be a guess: the batch size is needed, and the length of a text. A registry of image models knows the
        image size of each.
        """
        scheme = (self.target or "").partition(":")[0]
        has_length = scheme in _OF_IMAGES or self.seq is not None or self.image_size is not None
        if self.batch or self.batch_size is None or scheme not in REGISTRIES or not has_length:
            return {}
        return {name: getattr(self, name) for name in SIZES}


@dataclass(frozen=True, slots=True)
class Passport:
    """The machine, the program and the method of a measurement.

    Attributes:
        measured_by: The program: `vramcast measure`, `sacct`, `jobstats`, ...
        how: Source of the process peak: `nvml process`, `nvml device minus before`, `nvidia-smi device`, `slurm gpumem`,
            ...
        period_ms: Time between two samples of the process peak.
        date: ISO 8601, UTC.
        gpu: Name of the card in the form of torch or nvidia-smi.
        gpu_total_bytes: Memory of the card, as reported by torch.
        libraries: Name -> version of the libraries that the job used besides torch.
        host: A name for the machine, or a hash of one.
        source: File or address that the row was read from.
        licence: License of the source, if it is not the site's own.
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
        """The machine's torch, CUDA and cuDNN; missing versions are those of its torch's default wheel.

        None: nothing is known.
        """
        return of_passport(self.torch, self.cuda, self.cudnn)

    def __post_init__(self) -> None:
        _check("passport", {"gpu_total_bytes": self.gpu_total_bytes}, may_be_zero=False)
        _check("passport", {"period_ms": self.period_ms}, may_be_zero=True)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The results of a run.

    Attributes:
        status: `ok`; `oom`: reported by torch or the cluster; `error`: the job's own code raised; `killed`, `timeout`:
            ended from outside; `unknown`: not in the source.
        allocated_bytes: Peak of live blocks, `max_memory_allocated`.
        reserved_bytes: Peak of segments, `max_memory_reserved`.
        process_bytes: Peak that the driver attributes to the job.
        device_bytes: Peak of the whole card's used memory, including other processes.
        context_bytes: The process's memory before the first tensor.
        censored: The peaks are lower bounds: the job needed more (out of memory), or was not observed up to its peak.
        oom_requested_bytes: The request that failed.
        retries, ooms, segments: The allocator's counters; `segments` is a peak.
        steps: Steps done.
        step_ms: Time of each step, with the card synchronized.
        samples: Number of samples of the process peak.
        repeat_of: The run that this one repeats.
        workers: Number of jobs that shared the card at the time, including this one.
        workspaces: (operator, bytes) of blocks that convolutions allocated and freed at once, in order, without repeats.
        seconds: Duration of the whole run.
        message: The error's text, or a remark for a reader of the source.
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
            raise DatasetError(
                "measurement.status is 'oom' and censored is false, but a run that ran out of memory needed "
                "more: set censored to true."
            )
        allocated, reserved = self.allocated_bytes, self.reserved_bytes
        if allocated is not None and reserved is not None and allocated > reserved:
            raise DatasetError(
                f"measurement.allocated_bytes {allocated} is above reserved_bytes {reserved}: check whether they are swapped.",
                kind="allocated_bytes is above reserved_bytes: check whether they are swapped",
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
        """Return the run that `to_dict` of this or an older version wrote.

        Raises:
            DatasetError: It is not such a row; the message names the field.
        """
        if not isinstance(values, dict):
            raise DatasetError(f"A run must be an object, but this is {str(values)[:60]!r}.")
        return from_plain(cls, upgraded(values), "run")


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """Return a row of any earlier schema in the present one.

    A new version adds its step here: old rows stay readable forever.

    Raises:
        DatasetError: The row is newer than this vramcast, or has no version.
    """
    version = values.get("schema")
    if isinstance(version, bool) or not isinstance(version, int) or not version >= 1:
        raise DatasetError(f"run.schema is {str(version)[:40]!r}, but must be 1 to {SCHEMA}.")
    if version > SCHEMA:
        raise DatasetError(f"run.schema is {version}, but this vramcast reads up to {SCHEMA}: install a newer one.")
    return values


def with_source(run: Run, source: str) -> Run:
    """Return the run with the file it was read from in its passport."""
    return replace(run, passport=replace(run.passport, source=source))


def with_config(run: Run, folder: Path) -> Run:
    """Return a run with the config file that its target names included, so that it is the same wherever it is read."""
    if run.workload.target is None:
        return run
    return replace(run, workload=replace(run.workload, target=inlined(run.workload.target, folder)))


def _check(where: str, values: dict[str, Any], *, may_be_zero: bool) -> None:
    """Reject numbers that are negative, infinite, or 0 where 0 would mean that nothing was measured."""
    for name, value in values.items():
        if value is not None and not (0 < value < math.inf or (may_be_zero and value == 0)):
            least = "0 or more" if may_be_zero else "more than 0"
            raise DatasetError(
                f"{where}.{name} is {value}, but must be {least}, or null if it is unknown.",
                kind=f"{where}.{name} is not {least}",
            )
