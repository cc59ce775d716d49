"""`estimate(model, batch)`: one job, one answer; and `Estimator`, which answers many in one way."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from vramcast.core.checks import number
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
from vramcast.core.units import gib
from vramcast.estimates import other_ways
from vramcast.estimates.bounds import learned as artifacts
from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.model_job import job_of_model
from vramcast.estimates.phases import Course, course_of
from vramcast.estimates.remarks import remarks
from vramcast.estimates.result import Estimate, Peaks
from vramcast.estimates.run_on_card import OnCard, cudnn_asked, observed_on_card
from vramcast.estimates.watched_loop import watched
from vramcast.hardware.cards import device as find_device
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.hardware.stack import parse as parse_stack
from vramcast.jobs.job import TRACERS, Batch, Command, Job, Mode, Precision, Training, ZeroGrad
from vramcast.jobs.text import JobText
from vramcast.learner.traits import traits_of
from vramcast.simulator.curves import process_bytes
from vramcast.simulator.rules import AllocatorRules
from vramcast.simulator.settings import Settings, UnknownSetting
from vramcast.tracer.format.ledger import Code, Entered, Entry, words
from vramcast.tracer.format.rank_facts import world_size_of
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.observation import Tracer
from vramcast.tracer.portable_tracers import CPU, FAKE
from vramcast.tracer.processes.thread_pool import in_parallel
from vramcast.tracer.protocol import alloc_conf as allocator_settings
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions

if TYPE_CHECKING:
    from vramcast.learner.model import Learned

_LEAST_TIMEOUT_S: Final = 1e-3  # arbitrary: nothing ends sooner
_MOST_TIMEOUT_S: Final = 2_147_483.0  # spec: poll(2) counts milliseconds in a C int: 24 days
_SHORT_S: Final = 60.0  # arbitrary: a run which may be made twice without being asked for
_SHOWN_REASON: Final = 500  # arbitrary: characters of one tracer's error in a warning
_TRACERS: Final[dict[str, Callable[[], Tracer]]] = {
    "nullgpu": lambda: NullGpuTracer.shared(),
    "fake": lambda: FAKE,
    "cpu": lambda: CPU,
}


@dataclass(frozen=True)
class Estimator:
    """How jobs are estimated. An `Estimate` remembers the one which made it.

    Attributes:
        device: The card of jobs which are given by model or command: its name, or a `Device`.
        tracer: nullgpu, fake, cpu or auto, as for `estimate`; or any `vramcast.tracer.observation.Tracer`.
        level: Confidence level of `upper_bound`, in (0, 1).
        artifact: Folder of a learned correction (`vramcast train`); default: $VRAMCAST_ARTIFACT, else none.
        timeout_s: The answer is there after so many seconds, however often the job runs: it is stopped till then.
        stack: Software of the card's machine where it differs from this one's, as for `estimate`.
        bracket: Whether a job whose peaks the card's speed may change also runs on an infinitely slow card; None: one of
            several ranks whose first run was short.
        learned: A loaded artifact, by name, instead of one in a folder.
    Raises:
        UsageError: one of them is wrong.
    Example:
        >>> estimator = Estimator(device="a100-40gb", level=0.95)
        >>> small, large = (estimator.estimate(model, TensorSpec((n, 3, 224, 224))) for n in (16, 64))
        >>> estimator.command(["torchrun", "--nproc_per_node=2", "train.py"]).fits()
    """

    device: str | Device = "h200"
    tracer: str | Tracer = "auto"
    level: float = 0.99
    artifact: str | os.PathLike[str] | None = None
    timeout_s: float = 1800.0
    stack: str | Stack | None = None
    bracket: bool | None = None
    learned: tuple[str, Learned] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        is_known = self.tracer in TRACERS if isinstance(self.tracer, str) else hasattr(self.tracer, "observe")
        if not is_known:
            raise UsageError(f"tracer {shown(self.tracer)} is unknown: use one of {', '.join(TRACERS)}.")
        level = number("level", self.level)
        if not 0 < level < 1:
            raise UsageError(f"level is {level}: it must lie between 0 and 1, for example 0.99.")
        timeout_s = number("timeout_s (--timeout)", self.timeout_s, least=_LEAST_TIMEOUT_S, most=_MOST_TIMEOUT_S)
        for name, value in (("level", level), ("timeout_s", timeout_s)):
            object.__setattr__(self, name, value)
        _ = self.card
        if isinstance(self.stack, str):
            parse_stack(self.stack)

    @cached_property
    def card(self) -> Device:
        """The card of jobs which are given by model or command."""
        return self.device if isinstance(self.device, Device) else find_device(self.device)

    @cached_property
    def _artifact(self) -> tuple[str, Learned] | None:
        folder = artifacts.chosen(self.artifact) if self.learned is None else None
        return (folder.name, artifacts.load(folder)) if folder is not None else self.learned

    # -------------------------------------------------------------------------------------------- what is asked
    def estimate(self, model: Any, batch: Batch, **options: Any) -> Estimate:
        """Return the estimate of a model; `options` are those of `vramcast.estimate` which say how it is trained.

        Raises:
            UsageError: An argument is wrong.
            CannotEstimate: No number can be given.
        """
        return self.estimate_job(job_of_model(model, batch, self.card, stack=self.stack, **options))

    def command(self, command: Sequence[str], *, steps: int = 3, **options: Any) -> Estimate:
        """Return the estimate of a training command, `["torchrun", "train.py", "--epochs", "10"]`.

        Args:
            command: Its words, as people type them; launchers are read, and not run.
            steps: Training steps which are wanted.
            options: `until`, `budget_s`, `world_size`, `nproc_per_node`, `ranks`, `memory` and `alloc_conf` of
                `vramcast.jobs.text.JobText`.
        Raises:
            UsageError: An argument is wrong.
            CannotEstimate: No number can be given.
        """
        text = JobText(command=tuple(command), training=Training(steps=steps), stack=self.stack, **options)
        return self.estimate_job(text.job(self.card))

    def estimate_job(self, job: Job, options: RunOptions = AS_USUAL) -> Estimate:
        """Return the estimate of a job, on its own card.

        A job which does not fit there is traced again on an unlimited card, so that its peaks say what it needs.

        Raises:
            ArtifactError: The artifact is absent or damaged.
            CannotEstimate: No number can be given: a command asked the card for nothing, for example.
        """
        _ = self._artifact  # a wrong one is reported before the job is traced
        found = self.apply_artifact(self.uncorrected(job, options))
        if job.command is not None and not found.allocated:
            raise NothingAsked(_nothing_asked(job.command, found.course))
        return found

    def try_estimate(self, job: Job) -> Estimate | CannotEstimate:
        """Return the estimate of a job, or why none can be given."""
        try:
            return self.estimate_job(job)
        except CannotEstimate as error:
            return error

    def sweep(self, job: Job, batch_sizes: Iterable[int]) -> dict[int, Estimate | CannotEstimate]:
        """Return the estimates of a job with other batch sizes; where one cannot be given, why."""
        sizes = list(batch_sizes)
        return dict(zip(sizes, in_parallel(lambda size: self.try_estimate(job.with_batch(size)), sizes), strict=True))

    def changed(self, **changes: Any) -> Estimator:
        """Return an estimator like this one, but for some of its attributes."""
        return replace(self, **changes)

    # -------------------------------------------------------------------------------------------- how it is answered
    def uncorrected(self, job: Job, options: RunOptions = AS_USUAL) -> Estimate:
        """Return the estimate of `job` without any learned correction: what one is learned from and compared with."""
        _check_settings(job)
        deadline = Deadline.after(self.timeout_s)
        try:
            if not isinstance(self.tracer, str):
                return self._by(self.tracer, job, options, deadline)
            if self.tracer == "auto" and job.command is None and job.parallel is None:
                return self._by_the_first(job, options, deadline)
            return self._named("nullgpu" if self.tracer == "auto" else self.tracer, job, options, deadline)
        except TimeLimit as error:
            raise TimeLimit.within(self.timeout_s, error.advice) from None
        except (JobError, WorkerError) as error:
            if job.input_bytes <= job.total_bytes:
                raise
            raise DoesNotFit(
                f"The job does not fit on {job.device.name}: one batch alone takes {gib(job.input_bytes)} of its "
                f"{gib(job.total_bytes)}. How much it needs is not known, for it could not be traced ({_first_line(error)})."
            ) from None

    def apply_artifact(self, estimate: Estimate) -> Estimate:
        """Return an estimate of first principles with the bound of the artifact in use.

        That is the chosen one; where nobody chose, the shipped one if it covers the job's class.
        """
        if not estimate.allocated:  # a job which asked nothing of the card is not corrected
            return estimate
        if self._artifact is not None:
            return self._with_bound_of(*self._artifact, estimate)
        shipped = artifacts.shipped(self.artifact) if self.learned is None else None
        if shipped is None:
            return estimate
        if missing := shipped.lacks(estimate.traits):
            said = f"the shipped artifact has too few jobs with {', '.join(missing)}: the bound is the built-in rule's"
            return replace(estimate, warnings=(*estimate.warnings, said))
        rule = estimate.bound if isinstance(estimate.bound, PublicBound) and estimate.bound.knows_more else None
        return self._with_bound_of(artifacts.SHIPPED, shipped, estimate, at_least=rule)

    def _with_bound_of(self, name: str, learned: Learned, estimate: Estimate, at_least: PublicBound | None = None) -> Estimate:
        from vramcast.estimates.learner_input import observed
        from vramcast.learner.model import Subject

        started = time.perf_counter()
        seen = observed(estimate, with_features=learned.reads_features)
        subject = Subject.of(seen)
        bound = artifacts.LearnedBound(name, learned, subject, seen.libraries, estimate.torch, estimate.unknown, at_least)
        warnings = estimate.warnings
        if bound.is_out_of_distribution:
            outside = ", ".join(learned.outside(subject)[:3])
            warnings += (
                f"the job is unlike those which '{name}' was learned from ({outside}, ...): its bound is wider for it",
            )
        if not bound.promises(self.level):
            show = "they show" if at_least is None else "they and public runs show"
            warnings += (f"'{name}' has too few models behind it to promise level {self.level:g}: the bound is what {show}",)
        learn_s = time.perf_counter() - started
        seconds = {**estimate.seconds, "learn": learn_s, "total": estimate.seconds["total"] + learn_s}
        estimator = estimate.estimator.changed(learned=self._artifact)
        return replace(estimate, bound=bound, estimator=estimator, warnings=warnings, seconds=seconds)

    def _named(self, tracer: str, job: Job, options: RunOptions, deadline: Deadline) -> Estimate:
        started = time.perf_counter()
        chosen = _TRACERS[tracer]()
        start_s = time.perf_counter() - started
        return replace(self, tracer=tracer)._by(chosen, job, options, deadline, start_s=start_s)

    def _by_the_first(self, job: Job, options: RunOptions, deadline: Deadline) -> Estimate:
        """Trace with the null GPU, else with fake tensors, else on the CPU; the reason is the answer's first warning.

        Raises:
            JobError: the job's own code raised: on the null GPU as it would on a card, or on all three.
            TimeLimit: one of them took too long.
            CannotEstimate: none could trace it, for another reason.
        """
        try:
            return self._named("nullgpu", job, options, deadline)
        except CannotEstimate as error:
            if not _may_be_the_tracers_fault(error):
                raise
            first = error
        reasons = f"the null GPU could not ({shorten(str(first), _SHOWN_REASON)})"
        try:
            found = self._named("fake", job, options, deadline)
        except CannotEstimate as error:
            if isinstance(error, TimeLimit):
                raise
            reasons += f"; fake tensors could not ({error})"
            try:
                found = self._named("cpu", job, options, deadline)
            except JobError as error:
                raise first if isinstance(first, JobError) else error from None
        return replace(found, warnings=(f"traced by the {found.tracer} tracer: {reasons}", *found.warnings))

    def _by(self, tracer: Tracer, job: Job, options: RunOptions, deadline: Deadline, *, start_s: float = 0.0) -> Estimate:
        """Return the estimate which follows from what one tracer sees, which is the one of this estimator."""
        on_card, growth = observed_on_card(tracer, job, options, timeout_s=deadline.left_s()), None
        if options.answers == "drawn" and not options.slow:
            found_loops = watched(tracer, job, options, on_card, deadline)
            on_card, growth = found_loops.on_card, found_loops.growth
        found = replace(_estimate(self, job, on_card, start_s), growth=growth)
        found = self._with_ceiling(found, tracer, options, on_card, deadline)
        return self._with_slow_card(found, tracer, options, deadline)

    def _with_slow_card(self, found: Estimate, tracer: Tracer, options: RunOptions, deadline: Deadline) -> Estimate:
        """Return `found` with its peaks on an infinitely slow card, where the card's speed may change them and it is wanted."""
        if options.answers != "drawn" or not found.streams.decides or found.course.is_interrupted:
            return found
        took_s = found.seconds["trace"]
        is_wanted = found.world_size > 1 and took_s <= _SHORT_S if self.bracket is None else self.bracket
        if not is_wanted:
            said = "when blocks of several streams come back depends on the card's speed, which is taken for infinite"
            return replace(found, warnings=(*found.warnings, f"{said}: --bracket gives the peaks of a slow card too"))
        try:
            # arbitrary: a job which asks again and again whether something has happened never ends there
            timeout_s = min(deadline.left_s(), 10 + 5 * took_s)
            other = observed_on_card(tracer, found.job, replace(options, slow=True), timeout_s=timeout_s)
            why = "" if found.course.ended else course_of(other.trace).ended  # else its peaks are those until then
        except CannotEstimate as error:
            why = str(error)
        if why:
            said = f"on an infinitely slow card the job does not come as far ({shorten(why, _SHOWN_REASON)})"
            return replace(found, warnings=(*found.warnings, f"{said}: the bound does not cover a slow one"))
        slow = Peaks(other.allocated, other.reserved)
        seconds = {**found.seconds, "total": found.seconds["total"] + sum(other.seconds.values())}
        return replace(found, slow_card_peaks=slow, seconds=seconds)

    def _with_ceiling(
        self, found: Estimate, tracer: Tracer, options: RunOptions, on_card: OnCard, deadline: Deadline
    ) -> Estimate:
        """Return `found` with the most that other values would lead to, where something depends on those which nobody knows.

        The job runs again on an unlimited card: with the largest shapes and numbers, with the smallest numbers, and with each
        yes for a no. A job which raises where an answer is the other one ends there on a GPU too: that way needs no bound.
        """
        if options.answers != "drawn":
            return found
        way = replace(options, follow_values=True, limited=False, expandable=on_card.seen.was_expandable)
        most_s = (10 + 3 * found.seconds["total"]) if found.job.command else (10 + 10 * found.seconds["total"])
        others = {
            answers: self._another(found, tracer, replace(way, answers=answers), deadline, most_s)
            for answers in other_ways.wanted(on_card.seen.ledger)
        }
        return other_ways.covered(found, on_card.seen.ledger, others)

    def _another(
        self, found: Estimate, tracer: Tracer, way: RunOptions, deadline: Deadline, most_s: float
    ) -> Estimate | CannotEstimate:
        """Return the estimate of a job that is answered otherwise, or why there is none."""
        if found.course.is_interrupted:
            return CannotEstimate(found.course.ended)
        try:
            # arbitrary: the other way may be an endless loop
            return self._by(tracer, found.job, way, Deadline.after(min(deadline.left_s(), most_s)))
        except CannotEstimate as error:
            return error


def estimate(
    model: Any,
    batch: Batch,
    *,
    labels: Any = None,
    loss: Callable[..., Any] | None = None,
    optimizer: str | type | Callable[..., Any] = "adam",
    lr: float = 1e-3,
    precision: Precision = "fp32",
    mode: Mode = "train",
    steps: int = 3,
    zero_grad: ZeroGrad = "step-start",
    overlap_inputs: bool = True,
    device: str | Device = "h200",
    memory: int | str | None = None,
    alloc_conf: str | None = None,
    checkpointing: bool = False,
    channels_last: bool = False,
    cudnn_benchmark: bool = False,
    stack: str | Stack | None = None,
    tracer: str | Tracer = "auto",
    level: float = 0.99,
    timeout_s: float = 1800.0,
    artifact: str | os.PathLike[str] | None = None,
    parallel: str | None = None,
    world_size: int | None = None,
    nproc_per_node: int | None = None,
) -> Estimate:
    """Return how much GPU memory training (or running) `model` on `batch` takes.

    Args:
        model: An `nn.Module`, or a callable which builds one. It is only read: its weights are neither copied nor sent,
            and its state, gradients, buffers, hooks and random numbers stay as they are.
        batch: An example batch: a tensor or NumPy array, a tuple (positional arguments), a dict or what a tokenizer returns
            (keyword arguments), a dataclass, named tuple or other object (one argument), with `TensorSpec`s for tensors where
            you like. `(x, y)` for a model whose forward takes one argument means input and labels.
        labels: What the loss compares the output with, if not in `batch`.
        loss: `loss(output, labels)`, or `loss(output, batch)` without labels. Default: the model's own `.loss`,
            cross-entropy for scores and integer labels, mean squared error for floating ones, else the mean of the output.
        optimizer: `"adamw"` (any class of torch.optim by name; `"sgdm"` is SGD with momentum 0.9; options as
            `"adamw:fused=true"`), a class, or a callable which takes the parameters.
        lr: The learning rate; it never changes the memory.
        precision: fp32, bf16 or fp16 (the whole model), amp-bf16 or amp-fp16 (autocast; fp16 with a GradScaler).
        mode: train or infer.
        steps: Training steps to run, 3 by default: the optimizer's state appears at the end of the first.
        zero_grad: Where gradients are dropped (set to None): at the step's start, before backward, or after the step.
        overlap_inputs: Whether the last step's inputs still live when the next ones are moved to the device; False for
            `for x, y in loader: x, y = x.to(device), y.to(device)`.
        device: The card, see `vramcast.devices.DEVICES`.
        memory: Its size, if not the device's own: bytes or `"12GiB"`.
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF of the job; "": torch's defaults; None: what the environment here says.
        checkpointing: Switch the model's gradient checkpointing on.
        channels_last: Convert model and images to channels_last.
        cudnn_benchmark: torch.backends.cudnn.benchmark of the job.
        stack: Software of the card's machine where it differs from this one's: `"torch==2.8.0"`, or any of
            `"torch==2.8.0,cudnn==9.10.2,cuda==12"`. It decides which cuDNN is asked and which CUDA context is counted.
        tracer: nullgpu (the real CUDA code; Linux with a CUDA build of torch), fake (fake tensors, any build of torch), cpu
            (the real step on the CPU: the job must fit in this machine's memory), or auto: the first which runs here.
        level: Confidence level of `upper_bound`, in (0, 1).
        timeout_s: The job is stopped after so many seconds, all its runs together.
        artifact: Folder of a learned correction (`vramcast train`), for the quantiles; default: $VRAMCAST_ARTIFACT, else none.
        parallel: How the model is spread over ranks, of which each has a batch like `batch`: ddp, fsdp (FSDP2, block by block),
            or hsdp:RxS (R replicas of S shards); None: it runs alone.
        world_size: How many ranks; for hsdp R times S.
        nproc_per_node: Of them on each machine; default: as many as divide them, at most 8.
    Raises:
        UsageError: An argument is wrong.
        ArtifactError: The artifact is absent or damaged.
        CannotEstimate: No number can be given: the null GPU cannot run here, the job raised, or its process died.
    Example:
        >>> images, labels = TensorSpec((32, 3, 224, 224)), TensorSpec((32,), "int64", high=1000)
        >>> estimate(resnet50(), (images, labels), optimizer="adamw", device="a100-40gb").fits()
        True
    """
    return Estimator(device, tracer, level, artifact, timeout_s, stack).estimate(
        model, batch, labels=labels, loss=loss, optimizer=optimizer, lr=lr, precision=precision, mode=mode, steps=steps,
        zero_grad=zero_grad, overlap_inputs=overlap_inputs, checkpointing=checkpointing, channels_last=channels_last,
        cudnn_benchmark=cudnn_benchmark, memory=memory, alloc_conf=alloc_conf, parallel=parallel, world_size=world_size,
        nproc_per_node=nproc_per_node,
    )  # fmt: skip


def estimate_command(
    command: str | Sequence[str],
    *,
    device: str | Device = "h200",
    stack: str | Stack | None = None,
    level: float = 0.99,
    timeout_s: float = 1800.0,
    artifact: str | os.PathLike[str] | None = None,
    bracket: bool | None = None,
    **options: Any,
) -> Estimate:
    """Return how much GPU memory a training command takes: `vramcast run -- COMMAND` in Python.

    Args:
        command: What people type, as words or as one text: `train.py --epochs 10`, `python -m package.train`,
            `torchrun --nproc_per_node=1 train.py`, `accelerate launch train.py`, `deepspeed train.py`. Launchers are read, and
            not run. The script itself runs in the current folder, with the current environment.
        device: The card, see `vramcast.devices.DEVICES`.
        stack: As for `estimate`.
        level: Confidence level of `upper_bound`, in (0, 1).
        timeout_s: The job is stopped after so many seconds, all its runs together.
        artifact: As for `estimate`.
        bracket: As for `Estimator`.
        options: Those of `Estimator.command`: `steps`, `until`, `budget_s`, `memory`, `alloc_conf`, `world_size`,
            `nproc_per_node`, `ranks`.
    Raises:
        UsageError: An argument is wrong, or no Python program stands behind the command.
        CannotEstimate: No number can be given: the script raised, say, or asked the card for nothing.
    Example:
        >>> found = estimate_command("torchrun --nproc_per_node=8 train.py --epochs 10", device="h100", ranks="all")
        >>> [one.reserved for one in found.ranks]
    """
    words = shlex.split(command) if isinstance(command, str) else list(command)
    return Estimator(device, "nullgpu", level, artifact, timeout_s, stack, bracket).command(words, **options)


def _check_settings(job: Job) -> None:
    """Say before the job is traced what is wrong with the allocator's settings.

    Raises:
        OtherAllocator: they leave memory to another allocator.
        UsageError: torch would refuse them, or read them as nobody means them (it takes a negative size for no limit).
    """
    torch = job.stack.torch if job.stack is not None else None
    if job.alloc_conf is None:
        value = allocator_settings.of_environment(os.environ, torch).value
        if value != allocator_settings.of_environment(os.environ).value:
            raise UsageError(
                f"PYTORCH_ALLOC_CONF has no effect under torch {torch}, and the installed one may read it: unset it, or say "
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
        # The installed torch may be newer, and says so itself.
    except UsageError as error:
        place = "the environment's PYTORCH_CUDA_ALLOC_CONF" if job.alloc_conf is None else "alloc_conf"
        raise UsageError(f"{place} is '{value}': {error}") from None


def _nothing_asked(command: Command, course: Course) -> str:
    """Return what to say of a command which took nothing of the card."""
    program = "The code" if command.is_code else f"'{command.program}'"
    said = f"{program} ended without asking the GPU for memory"
    if course.ended:
        return f"{said} ({course.ended})"
    if course.frameworks:
        others = " and ".join(course.frameworks)
        return f"{said} by PyTorch: it imports {others}, and only what PyTorch's allocator takes can be estimated."
    return f"{said}: does it train, on device 'cuda'?"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _may_be_the_tracers_fault(error: CannotEstimate) -> bool:
    """Return whether the null GPU itself may be the cause of a failure, so that another tracer may know better.

    What the job raised where the null GPU had told it nothing untrue, a card would make it raise too; the others check less.
    """
    if isinstance(error, JobError):
        return error.after_reads
    return isinstance(error, (NullGpuError, WorkerError)) and not isinstance(error, TimeLimit)


def _estimate(estimator: Estimator, job: Job, on_card: OnCard, start_s: float) -> Estimate:
    seen = on_card.seen
    if seen.foreign:
        raise CannotEstimate(
            f"NVIDIA's own libraries were loaded beside the null GPU ({', '.join(seen.foreign)}): the numbers cannot be "
            "trusted. Please report the torch version and how it was installed."
        )
    unbounded_calls = words(seen.ledger, Entered.OPEN)
    unbounded = (Entry.of(Entered.OPEN, Code.UNBOUNDED, 1, name=name).words for name in unbounded_calls)
    unknown = (*words(seen.ledger, Entered.REFUSED, Entered.ASSUMED), *unbounded)
    return Estimate(
        job=job,
        trace=on_card.trace,
        allocated=on_card.allocated,
        reserved=on_card.reserved,
        process=int(process_bytes(on_card.trace).max(initial=0)),
        min_feasible=on_card.min_feasible,
        context=on_card.context,
        estimator=estimator,
        bound=PublicBound(on_card.reserved, seen.libraries, unknown),
        tracer=seen.tracer,
        alloc_conf=seen.alloc_conf,
        torch=seen.torch,
        cuda_major=on_card.cuda_major,
        stack=on_card.stack,
        steps=seen.steps if job.training.mode == "train" or job.command else job.training.steps,
        out_of_memory=on_card.out_of_memory,
        libraries=seen.libraries,
        unknown=unknown,
        noop_calls=words(seen.ledger, Entered.NOOP),
        host_reads=seen.count(Entered.READ) + seen.count(Entered.DRAWN),
        unbounded_calls=unbounded_calls,
        warnings=tuple(remarks(job, on_card)),
        traits=traits_of(
            on_card.trace,
            gpu=job.device.key,
            reserved=on_card.reserved,
            tracer=seen.tracer,
            torch=seen.torch,
            stack=on_card.stack,
            asked_cudnn=cudnn_asked(job.stack) if "cudnn" in seen.libraries else "",
            ranks=world_size_of(on_card.trace),
            is_full=on_card.out_of_memory is not None,
            batches_vary=job.varies,
        ),
        seconds={"start": start_s, **on_card.seconds, "total": start_s + sum(on_card.seconds.values())},
        max_resident_bytes=seen.max_resident_bytes,
        other_rank=on_card.other_rank,
    )
