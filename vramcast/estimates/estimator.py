"""`estimate` and `estimate_command` for one job, and `Estimator` for many."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from vramcast.core import progress
from vramcast.core.brief import brief
from vramcast.core.checks import number, whole
from vramcast.core.deadline import Deadline
from vramcast.core.errors import (
    CannotEstimate,
    DoesNotFit,
    JobError,
    NothingAsked,
    NullGpuError,
    TimeLimit,
    UsageError,
    WorkerError,
)
from vramcast.core.text import shorten, shown
from vramcast.core.units import gib, parse_bytes
from vramcast.estimates.bounds import learned as artifacts
from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.model_job import JobOptions, job_of_model
from vramcast.estimates.phases import TrainingCourse
from vramcast.estimates.remarks import remarks
from vramcast.estimates.result import Estimate, Peaks
from vramcast.estimates.runs.job_runs import JobRuns, runs_of
from vramcast.estimates.runs.on_card import cudnn_asked
from vramcast.estimates.sweep import Sweep
from vramcast.hardware.cards import DEFAULT
from vramcast.hardware.cards import device as find_device
from vramcast.hardware.cuda_support import refuse_dropped
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.hardware.stack import parse as parse_stack
from vramcast.jobs.job import TRACERS, Command, Job, Mode, Precision, Training, Until, ZeroGrad
from vramcast.jobs.other_names import suggests
from vramcast.jobs.text import JobText
from vramcast.learner.traits import traits_of
from vramcast.learner.workspaces import without_workspaces
from vramcast.simulator.curves import process_bytes
from vramcast.simulator.rules import AllocatorRules
from vramcast.simulator.settings import Settings, UnknownSetting
from vramcast.tracer.format.ledger import CallHandling, Code, Entry, words
from vramcast.tracer.format.rank_facts import world_size_of
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.nullgpu.cudnn.libraries import is_too_old, prefers_others
from vramcast.tracer.observation import Tracer
from vramcast.tracer.portable_tracers import CPU, FAKE
from vramcast.tracer.processes.thread_pool import in_parallel
from vramcast.tracer.protocol import alloc_conf as allocator_settings
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions

if TYPE_CHECKING:
    from vramcast.learner.model import LearnedModel

_LEAST_TIMEOUT_S: Final = 1e-3  # arbitrary: no job ends sooner
_MOST_TIMEOUT_S: Final = 2_147_483.0  # spec: poll(2) counts milliseconds in a C int: 24 days
_SHOWN_REASON: Final = 500  # arbitrary: characters of one tracer's error in a warning
_TRACERS: Final[dict[str, Callable[[], Tracer]]] = {
    "nullgpu": lambda: NullGpuTracer.shared(),
    "fake": lambda: FAKE,
    "cpu": lambda: CPU,
}


class CommandOptions(TypedDict, total=False):
    """The arguments of `Estimator.command`, options of `vramcast run`."""

    until: Until
    budget_s: float | None
    world_size: int | None
    nproc_per_node: int | None
    ranks: str | tuple[int, ...]
    precise_values: bool
    memory: int | str | None
    alloc_conf: str | None


@brief
@dataclass(frozen=True)
class Estimator:
    """Settings to estimate many jobs the same way; an `Estimate` keeps the `Estimator` that made it.

    Attributes:
        device: Card of the jobs given by model or command: its name (see `vramcast.devices.DEVICES`), or a `Device`.
        tracer: nullgpu, fake, cpu or auto, as for `estimate`; or any `vramcast.tracer.observation.Tracer`.
        level: Confidence level of `Estimate.upper_bound`, in (0, 1); None: 0.95, or 0.9 if fewer than 39 measured models
            are like the job.
        artifact: Folder of a learned correction (`vramcast learn`); default: $VRAMCAST_ARTIFACT, or else the shipped artifact
            if it covers the job's class.
        timeout_s: Time limit for an answer in seconds, over all runs of the job; the job is stopped at the limit.
        stack: Software of the card's machine where it differs from this machine, as for `estimate`.
        bracket: Whether to run a job again on an infinitely slow card, if its peaks may depend on the card's speed. None: only
            if it has several ranks and its first run was short.
        host_memory: Main memory of this machine that a job may take before it is ended: bytes, or text such as `"64GiB"`; None:
            80 % of the available memory.
        learned: Name and content of a loaded artifact, instead of a folder.

    Raises:
        UsageError: An attribute is wrong.

    Example:
        >>> estimator = vramcast.Estimator(device="a100-40gb", level=0.95)
        >>> found = estimator.estimate(model, batch)
        >>> found.level
        0.95
    """

    device: str | Device | None = None
    tracer: str | Tracer = "auto"
    level: float | None = None
    artifact: str | os.PathLike[str] | None = None
    timeout_s: float = 1800.0
    stack: str | Stack | None = None
    bracket: bool | None = None
    host_memory: int | str | None = None
    learned: tuple[str, LearnedModel] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        is_known = self.tracer in TRACERS if isinstance(self.tracer, str) else hasattr(self.tracer, "observe")
        if not is_known:
            raise UsageError(f"tracer {shown(self.tracer)} is unknown: use one of {', '.join(TRACERS)}.")
        level = None if self.level is None else number("level", self.level)
        if level is not None and not 0 < level < 1:
            raise UsageError(f"level is {level}: it must be between 0 and 1, for example 0.99.")
        timeout_s = number("timeout_s (--timeout)", self.timeout_s, least=_LEAST_TIMEOUT_S, most=_MOST_TIMEOUT_S)
        for name, value in (("level", level), ("timeout_s", timeout_s)):
            object.__setattr__(self, name, value)
        _ = self.card, self._host_bytes
        if isinstance(self.stack, str):
            parse_stack(self.stack)

    @cached_property
    def card(self) -> Device:
        """Card of the jobs given by model or command."""
        return self.device if isinstance(self.device, Device) else find_device(DEFAULT if self.device is None else self.device)

    @property
    def named_card(self) -> Device | None:
        """The card, if one was named."""
        return None if self.device is None else self.card

    @cached_property
    def _host_bytes(self) -> int | None:
        size = parse_bytes(self.host_memory) if isinstance(self.host_memory, str) else self.host_memory
        return None if size is None else whole("host_memory (--host-memory)", size, least=1)

    @cached_property
    def _artifact(self) -> tuple[str, LearnedModel] | None:
        folder = artifacts.chosen(self.artifact) if self.learned is None else None
        return (folder.name, artifacts.load(folder)) if folder is not None else self.learned

    # -------------------------------------------------------------------------------------------- jobs
    @suggests(*JobOptions.__annotations__)
    def estimate(self, model: Any, batch: Any = None, **options: Unpack[JobOptions]) -> Estimate:
        """Estimate a model.

        Args:
            model: An `nn.Module`, or a callable that builds one, as for `vramcast.estimate`.
            batch: An example batch or `TensorSpec`s, as for `vramcast.estimate`; none for a model's name.
            options: Those arguments of `vramcast.estimate` that describe the training, the ranks, the allocator or the card's
                size: `labels`, `loss`, `optimizer`, `precision`, `mode`, `memory` and so on.

        Returns:
            The estimate, with sizes in bytes.

        Raises:
            UsageError: An argument is wrong.
            ArtifactError: The artifact is absent or damaged.
            CannotEstimate: No number can be given.

        Example:
            >>> estimator.estimate(model, batch, mode="infer").peak_at["phase"]
            'forward'
        """
        return self.estimate_job(job_of_model(model, batch, self.named_card, stack=self.stack, **options))

    @suggests(*CommandOptions.__annotations__)
    def command(self, command: Sequence[str], *, steps: int = 3, **options: Unpack[CommandOptions]) -> Estimate:
        """Estimate a training command, such as `["torchrun", "train.py", "--epochs", "10"]`.

        Args:
            command: The words of the command as you type it. A launcher is read and not run.
            steps: Least number of training steps to observe, if the command makes as many.
            options: The options `until`, `budget_s`, `world_size`, `nproc_per_node`, `ranks`, `precise_values`, `memory` and
                `alloc_conf` of `vramcast run`.

        Returns:
            The estimate, with sizes in bytes.

        Raises:
            UsageError: An argument is wrong, or the command runs no Python program.
            ArtifactError: The artifact is absent or damaged.
            CannotEstimate: No number can be given.

        Example:
            >>> estimator.command(["train.py"]).course.ended
            ''
        """
        text = JobText(command=tuple(command), training=Training(steps=steps), stack=self.stack, **options)
        return self.estimate_job(text.job(self.named_card))

    def estimate_job(self, job: Job, options: RunOptions = AS_USUAL) -> Estimate:
        """Estimate a job on its own card.

        A job that does not fit there is traced again on an unlimited card, so that its peaks show the memory it needs.

        Args:
            job: The job, for example the `job` of another estimate.
            options: How the job is traced.

        Returns:
            The estimate, with sizes in bytes.

        Raises:
            ArtifactError: The artifact is absent or damaged.
            CannotEstimate: No number can be given; for example, a command requested no memory from the card.

        Example:
            >>> estimator.estimate_job(found.job.with_batch(8)).allocated < found.allocated
            True
        """
        _ = self._artifact  # report a wrong one before the job is traced
        found = self.uncorrected(job, options)
        progress.tell(progress.Stage.CARDS)
        found = self.apply_artifact(found)
        if job.command is not None and not found.allocated:
            raise NothingAsked(_nothing_requested(job.command, found.course))
        return found

    def try_estimate(self, job: Job) -> Estimate | CannotEstimate:
        """Estimate a job, and return the error instead of raising it.

        Args:
            job: The job.

        Returns:
            The estimate with sizes in bytes, or the error that `estimate_job` raises.

        Raises:
            ArtifactError: The artifact is absent or damaged.

        Example:
            >>> isinstance(estimator.try_estimate(found.job), vramcast.CannotEstimate)
            False
        """
        try:
            return self.estimate_job(job)
        except CannotEstimate as error:
            return error

    def sweep(self, job: Job, batch_sizes: Iterable[int]) -> Sweep:
        """Estimate a job at several batch sizes, in parallel.

        Args:
            job: The job.
            batch_sizes: First dimensions of the batch, each >= 0.

        Returns:
            By batch size, the estimate with sizes in bytes, or the error if no number can be given. Its `to_pandas` makes a
            table.

        Raises:
            UsageError: A batch size is not a whole number, or is negative.
            ArtifactError: The artifact is absent or damaged.

        Example:
            >>> by_size = estimator.sweep(found.job, [8, 16])
            >>> by_size[8].allocated < by_size[16].allocated
            True
        """
        sizes = list(batch_sizes)
        found = in_parallel(lambda size: self.try_estimate(job.with_batch(size)), sizes)
        return Sweep(zip(sizes, found, strict=True))

    def changed(self, **changes: Any) -> Estimator:
        """Return a copy with some attributes changed.

        Args:
            changes: New values by attribute.

        Returns:
            The new estimator.

        Raises:
            UsageError: A value is wrong.

        Example:
            >>> estimator.changed(level=0.99).level
            0.99
        """
        return replace(self, **changes)

    # -------------------------------------------------------------------------------------------- answers
    @progress.one_output()
    def uncorrected(self, job: Job, options: RunOptions = AS_USUAL) -> Estimate:
        """Estimate a job without any learned correction; learning and comparisons start from this estimate.

        Args:
            job: The job.
            options: How the job is traced.

        Returns:
            The estimate, with sizes in bytes and the bound of the built-in rule.

        Raises:
            UsageError: The allocator's settings are wrong.
            CannotEstimate: No number can be given.

        Example:
            >>> estimator.uncorrected(found.job).reserved == found.reserved
            True
        """
        _check_settings(job)
        options = replace(options, host_bytes=self._host_bytes)
        deadline = Deadline.after(self.timeout_s)
        try:
            if self.tracer in ("auto", "nullgpu"):
                refuse_dropped(job.device)
            if self.tracer == "auto" and job.command is None and job.parallel is None:
                return self._by_the_first(job, options, deadline)
            return self._by("nullgpu" if self.tracer == "auto" else self.tracer, job, options, deadline)
        except TimeLimit as error:
            raise TimeLimit.within(self.timeout_s, error.advice) from None
        except (JobError, WorkerError) as error:
            if job.input_bytes <= job.total_bytes:
                raise
            raise DoesNotFit(
                f"The job does not fit on {job.device.name}: one batch alone takes {gib(job.input_bytes)} of its "
                f"{gib(job.total_bytes)}. Its peak is unknown because it could not be traced ({_first_line(error)})."
            ) from None

    def apply_artifact(self, estimate: Estimate) -> Estimate:
        """Replace the bound of an uncorrected estimate by that of the artifact in use.

        The artifact in use is the chosen one; without a choice, it is the shipped one if it covers the job's class.

        Args:
            estimate: An estimate made by `uncorrected`.

        Returns:
            The estimate with the artifact's bound, or unchanged if no artifact applies.

        Raises:
            ArtifactError: The artifact is absent or damaged.

        Example:
            >>> plain = estimator.uncorrected(found.job)
            >>> estimator.apply_artifact(plain).upper_bound == found.upper_bound
            True
        """
        if not estimate.allocated:  # a job that requested nothing from the card is not corrected
            return estimate
        if self._artifact is not None:
            found = self._with_bound_of(*self._artifact, estimate)
            if not found.bound.is_out_of_distribution or not isinstance(found.bound, artifacts.LearnedBound):
                return found
            default = self._with_shipped_bound(artifacts.load(artifacts.named(artifacts.SHIPPED)), estimate)
            return replace(found, bound=replace(found.bound, at_least=default.bound))
        shipped = artifacts.shipped(self.artifact) if self.learned is None else None
        return estimate if shipped is None else self._with_shipped_bound(shipped, estimate)

    def _with_shipped_bound(self, shipped: LearnedModel, estimate: Estimate) -> Estimate:
        if missing := shipped.lacks(estimate.traits):
            text = f"too few jobs with {', '.join(missing)} were measured: the bound comes from other public runs"
            return replace(estimate, warnings=(*estimate.warnings, text))
        rule = estimate.bound if isinstance(estimate.bound, PublicBound) else None
        return self._with_bound_of(artifacts.SHIPPED, shipped, estimate, rule)

    def _with_bound_of(self, name: str, learned: LearnedModel, estimate: Estimate, rule: PublicBound | None = None) -> Estimate:
        from vramcast.estimates.learner_input import observed

        started = time.perf_counter()
        seen = observed(estimate, with_features=learned.reads_features)
        bound = artifacts.LearnedBound.of(name, learned, seen, estimate.unknown, rule)
        warnings = estimate.warnings
        if bound.is_out_of_distribution:
            outside = ", ".join(learned.outside(bound.subject)[:3])
            warnings += (f"the job differs from the measured runs behind the bound ({outside}, ...): this widens the bound",)
        learn_s = time.perf_counter() - started
        seconds = {**estimate.seconds, "learn": learn_s, "total": estimate.seconds["total"] + learn_s}
        estimator = estimate.estimator.changed(learned=self._artifact)
        estimate = estimate.with_context(bound.context_on(estimate.card, estimate.context))
        return replace(estimate, bound=bound, estimator=estimator, warnings=warnings, seconds=seconds)

    def _by(self, tracer: str | Tracer, job: Job, options: RunOptions, deadline: Deadline, remark: str = "") -> Estimate:
        """Estimate a job from the observations of one tracer."""
        started = time.perf_counter()
        chosen = _TRACERS[tracer]() if isinstance(tracer, str) else tracer
        start_s = time.perf_counter() - started
        runs = runs_of(chosen, job, options, deadline, bracket=self.bracket)
        return _built(replace(self, tracer=tracer), runs, start_s, remark)

    def _by_the_first(self, job: Job, options: RunOptions, deadline: Deadline) -> Estimate:
        """Trace with the null GPU, or else with fake tensors, or else on the CPU; the first warning gives the reason.

        Raises:
            JobError: The job's own code raised: on the null GPU as it would on a card, or with all three tracers.
            TimeLimit: A tracer took too long.
            CannotEstimate: No tracer could trace the job, for another reason.
        """
        try:
            return self._by("nullgpu", job, options, deadline)
        except CannotEstimate as error:
            if not _may_be_the_tracers_fault(error):
                raise
            first = error
        reasons = f"the null GPU failed ({shorten(str(first), _SHOWN_REASON)})"
        try:
            return self._by("fake", job, options, deadline, f"traced by the fake tracer: {reasons}")
        except CannotEstimate as error:
            if isinstance(error, TimeLimit):
                raise
            reasons += f"; fake tensors failed ({error})"
            try:
                return self._by("cpu", job, options, deadline, f"traced by the cpu tracer: {reasons}")
            except JobError as error:
                raise first if isinstance(first, JobError) else error from None


Estimator.__init__ = suggests()(Estimator.__init__)  # type: ignore[method-assign]


@suggests()
def estimate(
    model: Any,
    batch: Any = None,
    *,
    batch_size: int | None = None,
    seq: int | None = None,
    image_size: int | None = None,
    num_classes: int | None = None,
    lora: str | None = None,
    qlora: str | None = None,
    labels: Any = None,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = "adam",
    lr: float = 1e-3,
    precision: Precision = "fp32",
    mode: Mode = "train",
    steps: int = 3,
    zero_grad: ZeroGrad = "step-start",
    overlap_inputs: bool = True,
    device: str | Device | None = None,
    on: str | Device | None = None,
    memory: int | str | None = None,
    alloc_conf: str | None = None,
    checkpointing: bool = False,
    channels_last: bool = False,
    cudnn_benchmark: bool = False,
    stack: str | Stack | None = None,
    tracer: str | Tracer = "auto",
    level: float | None = None,
    timeout_s: float = 1800.0,
    artifact: str | os.PathLike[str] | None = None,
    parallel: str | None = None,
    world_size: int | None = None,
    nproc_per_node: int | None = None,
    host_memory: int | str | None = None,
) -> Estimate:
    """Estimate the GPU memory of training or running `model` on `batch`.

    Args:
        model: An `nn.Module`, or a callable that builds one. The model is only read: its weights are neither copied nor sent,
            and its state, gradients, buffers, hooks and random numbers stay unchanged. Or a model's name, as for
            `vramcast estimate`: `"hf:meta-llama/Llama-3.1-8B"`, `"timm:resnet50"`.
        batch: An example batch: a tensor or NumPy array, a tuple (positional arguments), a dict or the output of a tokenizer
            (keyword arguments), or a dataclass, named tuple or other object (one argument). Any tensor may be a `TensorSpec`.
            For a model with one input, `(x, y)` means input and labels. Of a `DataLoader`, the first batch counts; of a data
            set, its first `batch_size` samples. A model's name needs no batch: its inputs follow from its task.
        batch_size: Samples of a batch, for a model's name (default 8) or a data set.
        seq: Tokens of a text, or samples of audio, for a model's name.
        image_size: Height and width of an image in pixels, for a model's name.
        num_classes: Number of classes, for a model's name.
        lora: Trains LoRA adapters on a frozen `hf:` model: `"r=16"`, or `"r=16,alpha=32,dropout=0.05,target=q_proj+v_proj"`.
        qlora: The same, with the frozen linear layers in 4 bits.
        labels: Labels that the loss compares with the output, if they are not in `batch`.
        loss: A callable, `loss(output, labels)`, or `loss(output, batch)` without labels. Default: the model's own `.loss`;
            otherwise cross-entropy for scores and integer labels, mean squared error for floating-point labels, or else the
            mean of the output.
        optimizer: Name of a class in torch.optim in any case (`"adamw"`; `"sgdm"` is SGD with momentum 0.9), with options as in
            `"adamw:fused=true"`, or `"module:Class"`; or an optimizer over this model's parameters; or a class, or a callable
            that takes the parameters.
        lr: Learning rate. It never changes the memory.
        precision: fp32, bf16 or fp16 for the whole model, or amp-bf16 or amp-fp16 for autocast (amp-fp16 with a GradScaler).
        mode: train or infer.
        steps: Number of training steps to run. The optimizer's state appears at the end of the first.
        zero_grad: Point at which gradients are set to None: step-start, before-backward or after-step.
        overlap_inputs: Whether the inputs of a step are still alive when those of the next step move to the device; False for
            `for x, y in loader: x, y = x.to(device), y.to(device)`.
        device: Name of the card (see `vramcast.devices.DEVICES`), or a `Device`.
        on: Another name of `device`, as on the command line.
        memory: Size of the card if it differs from the device's own: bytes, or text such as `"12GiB"`.
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF of the job; "" for torch's defaults; None for the value in this environment.
        checkpointing: Whether to switch on the model's gradient checkpointing.
        channels_last: Whether to convert the model and its images to channels_last.
        cudnn_benchmark: Value of torch.backends.cudnn.benchmark in the job.
        stack: Software of the card's machine where it differs from this machine: `"torch==2.8.0"`, or any of
            `"torch==2.8.0,cudnn==9.10.2,cuda==12"`. It selects the cuDNN that answers and the size of the CUDA context.
        tracer: nullgpu (the real CUDA code; needs Linux and a CUDA build of torch), fake (fake tensors, any build of torch),
            cpu (the real step on the CPU: the job must fit in this machine's memory), or auto: the first of these that works.
        level: Confidence level of `upper_bound`, in (0, 1); None: the highest that the measured models like the job support, at
            most 0.99.
        timeout_s: Time limit in seconds, over all runs of the job.
        artifact: Folder of a learned correction (`vramcast learn`) for the quantiles; default: $VRAMCAST_ARTIFACT, or else the
            shipped artifact if it covers the job's class.
        parallel: How the model is spread over ranks, each with a batch like `batch`: ddp, fsdp (FSDP2, block by block), or
            hsdp:RxS (R replicas of S shards); None for a single rank.
        world_size: Number of ranks; for hsdp, R times S.
        nproc_per_node: Number of ranks on each machine; default: the largest divisor of `world_size` that is at most 8.
        host_memory: Main memory that the job may take, as for `Estimator`.

    Returns:
        The estimate, with sizes in bytes.

    Raises:
        UsageError: An argument is wrong.
        UnknownArgument: There is no argument of that name; the message names the one that is meant.
        ArtifactError: The artifact is absent or damaged.
        CannotEstimate: No number can be given: the null GPU cannot run here, the job raised, or its process died.

    Example:
        >>> import torch, vramcast
        >>> model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10))
        >>> batch = vramcast.TensorSpec((64, 1024)), vramcast.TensorSpec((64,), "int64", high=10)
        >>> est = vramcast.estimate(model, batch, optimizer="adamw", device="a100-40gb")
        >>> est.fits()
        True
        >>> vramcast.gib(est.reserved), est.level
        ('... MiB', 0.9...)
    """
    return Estimator(device if on is None else on, tracer, level, artifact, timeout_s, stack, None, host_memory).estimate(
        model, batch, batch_size=batch_size, seq=seq, image_size=image_size, num_classes=num_classes, lora=lora, qlora=qlora,
        labels=labels, loss=loss, optimizer=optimizer, lr=lr, precision=precision, mode=mode, steps=steps,
        zero_grad=zero_grad, overlap_inputs=overlap_inputs, checkpointing=checkpointing, channels_last=channels_last,
        cudnn_benchmark=cudnn_benchmark, memory=memory, alloc_conf=alloc_conf, parallel=parallel, world_size=world_size,
        nproc_per_node=nproc_per_node,
    )  # fmt: skip


@suggests(*CommandOptions.__annotations__)
def estimate_command(
    command: str | Sequence[str],
    *,
    device: str | Device | None = None,
    on: str | Device | None = None,
    stack: str | Stack | None = None,
    level: float | None = None,
    timeout_s: float = 1800.0,
    artifact: str | os.PathLike[str] | None = None,
    bracket: bool | None = None,
    host_memory: int | str | None = None,
    steps: int = 3,
    **options: Unpack[CommandOptions],
) -> Estimate:
    """Estimate the GPU memory of a training command: the Python form of `vramcast run -- COMMAND`.

    Args:
        command: The command as you type it, as a list of words or one string: `train.py --epochs 10`,
            `python -m package.train`, `torchrun --nproc_per_node=1 train.py`, `accelerate launch train.py` or
            `deepspeed train.py`. A launcher is read and not run. The script itself runs in the current folder, with the current
            environment.
        device: Name of the card (see `vramcast.devices.DEVICES`), or a `Device`.
        on: Another name of `device`, as on the command line.
        stack: Software of the card's machine where it differs from this machine, as for `estimate`.
        level: Confidence level of `upper_bound`, in (0, 1); None: the highest that the measured models like the job support, at
            most 0.99.
        timeout_s: Time limit in seconds, over all runs of the job.
        artifact: Folder of a learned correction, as for `estimate`.
        bracket: Whether the job may also run on an infinitely slow card, as for `Estimator`.
        host_memory: Main memory that the job may take, as for `Estimator`.
        steps: Least number of training steps to observe, if the command makes as many.
        options: Options of `Estimator.command`: `until`, `budget_s`, `memory`, `alloc_conf`, `world_size`,
            `nproc_per_node`, `ranks` and `precise_values`.

    Returns:
        The estimate, with sizes in bytes.

    Raises:
        UsageError: An argument is wrong, or the command runs no Python program.
        ArtifactError: The artifact is absent or damaged.
        CannotEstimate: No number can be given; for example, the script raised, or requested no memory from the card.

    Example:
        >>> found = vramcast.estimate_command("train.py --epochs 10", device="h100", steps=2)
        >>> found.steps >= 2, found.course.not_reached
        (True, ())
    """
    words = shlex.split(command) if isinstance(command, str) else list(command)
    return Estimator(device if on is None else on, "nullgpu", level, artifact, timeout_s, stack, bracket, host_memory).command(
        words, steps=steps, **options
    )


def _check_settings(job: Job) -> None:
    """Check the allocator's settings before the job is traced.

    Raises:
        OtherAllocator: The settings select another allocator.
        UsageError: torch would reject the settings, or misread them (it takes a negative size for no limit).
    """
    torch = job.stack.torch if job.stack is not None else None
    if job.alloc_conf is None:
        value = allocator_settings.of_environment(os.environ, torch).value
        if value != allocator_settings.of_environment(os.environ).value:
            raise UsageError(
                f"PYTORCH_ALLOC_CONF has no effect in torch {torch}, but the installed torch may read it: unset it, or pass "
                "alloc_conf."
            )
    else:
        value = job.alloc_conf
        allocator_settings.refuse_no_caching(os.environ)
    try:
        Settings.parse(value, AllocatorRules.of(torch))
    except UnknownSetting:
        if torch is not None:
            raise
        # The installed torch may be newer, and reports the setting itself.
    except UsageError as error:
        place = "the environment's PYTORCH_CUDA_ALLOC_CONF" if job.alloc_conf is None else "alloc_conf"
        raise UsageError(f"{place} is '{value}': {error}") from None


def _nothing_requested(command: Command, course: TrainingCourse) -> str:
    """Return the error text for a command that took no memory from the card."""
    program = "The code" if command.is_code else f"'{command.program}'"
    text = f"{program} ended without requesting GPU memory"
    if course.ended:
        return f"{text} ({course.ended})"
    if course.frameworks:
        others = " and ".join(course.frameworks)
        return f"{text} through PyTorch: it imports {others}, but only memory of PyTorch's allocator can be estimated."
    return f"{text}: check that it trains on device 'cuda'."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _may_be_the_tracers_fault(error: CannotEstimate) -> bool:
    """Return whether the null GPU itself may be the cause of a failure, so that another tracer is worth a try.

    If the null GPU gave the job no untrue answer, the job would raise on a card too; the other tracers check less.
    """
    if isinstance(error, JobError):
        return error.after_reads
    return isinstance(error, (NullGpuError, WorkerError)) and not isinstance(error, TimeLimit)


def _built(estimator: Estimator, runs: JobRuns, start_s: float, remark: str) -> Estimate:
    """Return the estimate of a job from its runs, without a learned correction."""
    job, chosen, on_card, values = runs.job, runs.chosen, runs.on_card, runs.values
    seen, larger, slow = on_card.seen, chosen.larger, runs.slow
    open_calls = (Entry.of(CallHandling.OPEN, Code.UNBOUNDED, 1, name=one) for one in words(seen.ledger, CallHandling.OPEN))
    unknown = (*words(seen.ledger, CallHandling.REFUSED, CallHandling.ASSUMED), *(one.words for one in open_calls))
    cudnn = cudnn_asked(chosen.options.stack_of_plans(job.stack)) if "cudnn" in seen.libraries else ""
    bare = without_workspaces(on_card.trace)
    traits = traits_of(
        on_card.trace,
        gpu=job.device.key,
        reserved=on_card.reserved,
        tracer=seen.tracer,
        torch=seen.torch,
        stack=on_card.stack,
        asked_cudnn=cudnn,
        ranks=world_size_of(on_card.trace),
        is_full=on_card.out_of_memory is not None,
        batches_vary=job.varies,
        without_workspaces=bare,
        larger=larger.reserved if larger is not None else None,
        is_unlike=prefers_others(cudnn, on_card.stack.cudnn or cudnn),
        is_old=is_too_old(on_card.stack),
    )
    return Estimate(
        job=job,
        trace=on_card.trace,
        allocated=on_card.allocated,
        reserved=on_card.reserved,
        process=int(process_bytes(on_card.trace).max(initial=0)),
        min_feasible=on_card.min_feasible,
        without_searches=on_card.without_searches,
        context=on_card.context,
        estimator=estimator,
        bound=PublicBound(on_card.reserved, seen.libraries, unknown, larger.reserved if larger is not None else 0),
        tracer=seen.tracer,
        alloc_conf=seen.alloc_conf,
        torch=seen.torch,
        cuda_major=on_card.cuda_major,
        stack=on_card.stack,
        steps=seen.steps if job.training.mode == "train" or job.command else job.training.steps,
        out_of_memory=on_card.out_of_memory,
        libraries=seen.libraries,
        unknown=unknown,
        noop_calls=words(seen.ledger, CallHandling.NOOP),
        host_reads=seen.count(CallHandling.READ) + seen.count(CallHandling.DRAWN),
        unbounded_calls=values.unbounded_calls,
        max_shape_reserved_bytes=values.reserved,
        warnings=tuple(filter(None, [remark, *remarks(job, on_card), chosen.warning, *values.remarks, runs.remark])),
        traits={**traits, "values": "drawn"} if values.decide else traits,
        cudnn=cudnn,
        larger_plans=larger,
        without_workspaces=bare,
        seconds={"start": start_s, **runs.seconds, "total": start_s + runs.seconds["total"]},
        max_resident_bytes=seen.max_resident_bytes,
        grown_bytes=seen.grown_bytes,
        other_rank=on_card.other_rank,
        adapted=seen.adapted,
        growth=runs.growth,
        slow_card_peaks=Peaks(slow.allocated, slow.reserved) if slow is not None else None,
    )
