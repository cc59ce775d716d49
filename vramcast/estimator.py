"""`estimate(model, batch)`: one job, one answer."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vramcast import correction
from vramcast.checks import SHOWN, number, shown
from vramcast.context import LIBRARIES, context_bytes
from vramcast.devices import Device, checked_card_bytes
from vramcast.devices import device as find_device
from vramcast.errors import CannotEstimate, DoesNotFit, JobError, NullGpuError, TimeLimit, UsageError, WorkerError
from vramcast.job import TRACERS, Batch, Job, Mode, Precision, TensorSpec, Training, ZeroGrad, current_folder, map_batch
from vramcast.result import Estimate
from vramcast.simulator.card import Card
from vramcast.simulator.curves import process_bytes
from vramcast.simulator.replay import recorded_settings
from vramcast.simulator.settings import Settings, UnknownSetting
from vramcast.simulator.simulation import simulate
from vramcast.simulator.terms import first_row, with_context
from vramcast.simulator.whatif import min_feasible
from vramcast.stack import Stack, same_minor
from vramcast.stack import parse as parse_stack
from vramcast.tracer import alloc_conf as allocator_settings
from vramcast.tracer.cpu import client as cpu_tracer
from vramcast.tracer.fake import client as fake_tracer
from vramcast.tracer.ledger import Code, Entered, Entry, words
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.nullgpu.cudnn_libraries import installed_stack, warning_of
from vramcast.tracer.operators import Library, Operator
from vramcast.tracer.result import Result
from vramcast.tracer.run_options import AS_USUAL, Answers, RunOptions
from vramcast.tracer.trace import Trace
from vramcast.units import gib, shortened, torch_size

if TYPE_CHECKING:
    from vramcast.learner.model import Learned

# Operators at which a library is loaded: its memory is taken then, and not before.
_FIRST_USE: dict[str, Callable[[Operator], bool]] = {
    "cublas": lambda operator: operator.library is Library.CUBLAS,
    "cudnn": lambda operator: operator.library.is_cudnn,
}
_LEAST_TIMEOUT_S = 1e-3  # arbitrary: nothing ends sooner
_MOST_TIMEOUT_S = 2_147_483.0  # spec: poll(2) counts milliseconds in a C int: 24 days
_SHOWN_REASON = 500  # arbitrary: characters of one tracer's error in a warning
_ASSUMED_CUDA = 13  # arbitrary: the major version of current CUDA builds, where the installed torch has none
_PORTABLE: dict[str, Callable[..., Result]] = {"fake": fake_tracer.trace, "cpu": cpu_tracer.trace}


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
    tracer: str = "auto",
    level: float = 0.99,
    timeout_s: float = 1800.0,
    artifact: str | os.PathLike[str] | None = None,
) -> Estimate:
    """Return how much GPU memory training (or running) `model` on `batch` takes.

    Args:
        model: An `nn.Module`, or a callable which builds one. It is only read: its weights are neither copied nor sent,
            and its state, gradients, buffers, hooks and random numbers stay as they are.
        batch: An example batch: a tensor, a tuple (positional arguments), a dict (keyword arguments), or `TensorSpec`s.
            `(x, y)` for a model whose forward takes one argument means input and labels.
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
        level: Of `upper_bound`.
        timeout_s: The job is stopped after so many seconds.
        artifact: Folder of a learned correction (`vramcast train`), for the quantiles; default: $VRAMCAST_ARTIFACT, else none.
    Raises:
        UsageError: An argument is wrong.
        ArtifactError: The artifact is absent or damaged.
        CannotEstimate: No number can be given: the null GPU cannot run here, the job raised, or its process died.
    """
    import torch  # which the caller of this function has

    from vramcast.tracer import hollow

    def spec_of(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided or leaf.is_nested:
                kind = "nested" if leaf.is_nested else "sparse"
                raise UsageError(
                    f"The batch holds a {kind} tensor ({leaf.layout}), and only dense ones can be described: pass it dense "
                    "(x.to_dense()) and convert it in the model's forward."
                )
            small = leaf.nbytes < hollow.BIG_BYTES and leaf.device.type == "cpu"
            content = leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if small else None
            return TensorSpec(tuple(leaf.shape), str(leaf.dtype), content=content)
        if not isinstance(leaf, TensorSpec):
            _check_sendable(leaf)
        return leaf

    if loss is not None and not callable(loss):
        raise UsageError(f"loss is {shown(loss)}: give a callable, loss(output, labels).")
    if not isinstance(optimizer, str) and not callable(optimizer):
        raise UsageError(f"optimizer is {shown(optimizer)}: give a name of torch.optim, a class, or a callable.")

    job = Job(
        device=find_device(device) if not isinstance(device, Device) else device,
        model=hollow.dumps(model),
        batch=map_batch(batch, spec_of),
        labels=map_batch(labels, spec_of) if labels is not None else None,
        loss=hollow.dumps(loss) if loss is not None else None,
        training=Training(
            optimizer=optimizer if isinstance(optimizer, str) else hollow.dumps(optimizer),
            lr=lr,
            precision=precision,
            mode=mode,
            steps=steps,
            zero_grad=zero_grad,
            overlap_inputs=overlap_inputs,
            checkpointing=checkpointing,
            channels_last=channels_last,
            cudnn_benchmark=cudnn_benchmark,
        ),
        alloc_conf=alloc_conf,
        stack=parse_stack(stack) if isinstance(stack, str) else stack,
        memory_bytes=checked_card_bytes(memory) if memory is not None else None,
        search_path=tuple(sys.path),
        working_folder=current_folder(),
    )
    return run_job(job, tracer=tracer, level=level, timeout_s=timeout_s, artifact=artifact)


def _check_sendable(leaf: object) -> None:
    """Raise where a part of a batch, neither tensor nor TensorSpec, cannot go to the process which traces."""
    if isinstance(leaf, Iterator):
        raise UsageError(f"The batch holds a {type(leaf).__name__}: pass one batch of it, for example next(iter(loader)).")
    try:
        pickle.dumps(leaf)
    except Exception as error:  # whatever its class raises
        raise UsageError(
            f"The batch holds a {type(leaf).__name__}, which cannot be sent to the process that traces "
            f"({shortened(str(error), SHOWN)}): pass tensors, tuples, dicts and plain values."
        ) from None


def run_job(
    job: Job, options: RunOptions = AS_USUAL, *, tracer: str = "auto", level: float = 0.99, timeout_s: float = 1800.0,
    artifact: str | os.PathLike[str] | None = None,
) -> Estimate:  # fmt: skip
    """Return the estimate of `job`; the function behind `estimate` and the command line.

    A job which does not fit on its card is traced again on one without an end, so that its peaks say what it needs.
    """
    folder = correction.chosen(artifact)
    learned = correction.load(folder) if folder is not None else None  # a wrong artifact is said before the job is traced
    estimate = first_principles(job, options, tracer=tracer, level=level, timeout_s=timeout_s)
    return corrected(estimate, folder.name, learned) if folder is not None and learned is not None else estimate


def run_like(estimate: Estimate, job: Job, options: RunOptions = AS_USUAL, *, timeout_s: float | None = None) -> Estimate:
    """Return the estimate of another job, made as this one was: by the same tracer and artifact, at the same level.

    Args:
        estimate: Says how.
        job: What to estimate.
        options: How it is traced.
        timeout_s: Default: the time limit which the estimate had.
    """
    limit_s = estimate.timeout_s if timeout_s is None else timeout_s
    plain = first_principles(job, options, tracer=estimate.tracer, level=estimate.level, timeout_s=limit_s)
    return corrected_like(estimate, plain)


def corrected_like(estimate: Estimate, plain: Estimate) -> Estimate:
    """Return `plain`, of first principles, with the artifact which `estimate` was corrected by, if any."""
    of = estimate.correction
    return plain if of is None else corrected(plain, of.name, of.learned)


def corrected(estimate: Estimate, name: str, learned: Learned) -> Estimate:
    """Return the estimate with what the artifact says of it."""
    from vramcast.learner.model import Subject
    from vramcast.observed import observed

    if not estimate.allocated:  # the job asked nothing of the card: there is nothing to correct
        return estimate
    started = time.perf_counter()
    seen = observed(estimate)
    subject = Subject.of(seen)
    found = correction.Correction(name, learned, subject, seen.libraries, estimate.torch)
    warnings = (*estimate.warnings, *(f"'{name}' {note}" for note in learned.notes))
    if found.is_unlike:
        outside = ", ".join(learned.outside(subject)[:3])
        warnings += (f"the job is unlike those which '{name}' was learned from ({outside}, ...): its bound is wider for it",)
    if not found.promises(estimate.level):
        warnings += (f"'{name}' has too few models behind it to promise level {estimate.level:g}: its largest miss is used",)
    learn_s = time.perf_counter() - started
    seconds = {**estimate.seconds, "learn": learn_s, "total": estimate.seconds["total"] + learn_s}
    return replace(estimate, correction=found, warnings=warnings, seconds=seconds)


def first_principles(
    job: Job, options: RunOptions = AS_USUAL, *, tracer: str = "auto", level: float = 0.99, timeout_s: float = 1800.0
) -> Estimate:
    """Return the estimate of `job` without any learned correction: what one is learned from and compared with."""
    if tracer not in TRACERS:
        raise UsageError(f"tracer '{tracer}' is unknown: use one of {', '.join(TRACERS)}.")
    level = number("level", level)
    if not 0 < level < 1:
        raise UsageError(f"level is {level}: it must lie between 0 and 1, for example 0.99.")
    timeout_s = number("timeout_s (--timeout)", timeout_s, least=_LEAST_TIMEOUT_S, most=_MOST_TIMEOUT_S)
    _check_settings(job)
    try:
        if tracer in _PORTABLE:
            return _portable(tracer, job, options, level, timeout_s)
        if tracer == "nullgpu" or job.script is not None:
            return _on_null_gpu(job, options, level, timeout_s)
        return _first_that_works(job, options, level, timeout_s)
    except TimeLimit:
        raise
    except (JobError, WorkerError) as error:
        if job.input_bytes <= job.total_bytes:
            raise
        raise DoesNotFit(
            f"The job does not fit on {job.device.name}: one batch alone takes {gib(job.input_bytes)} of its "
            f"{gib(job.total_bytes)}. How much it needs is not known, for it could not be traced ({_first_line(error)})."
        ) from None


def _check_settings(job: Job) -> None:
    """Say before the job is traced what is wrong with the allocator's settings.

    Raises:
        OtherAllocator: they leave memory to another allocator.
        UsageError: torch would refuse them, or read them as nobody means them (it takes a negative size for no limit).
    """
    if job.alloc_conf is None:
        value = allocator_settings.of_environment(os.environ).value
    else:
        value = job.alloc_conf
        allocator_settings.refuse_no_caching(os.environ)
    try:
        Settings.parse(value)
    except UnknownSetting:
        pass  # the installed torch may be newer, and says so itself
    except UsageError as error:
        place = "the environment's PYTORCH_CUDA_ALLOC_CONF" if job.alloc_conf is None else "alloc_conf"
        raise UsageError(f"{place} is '{value}': {error}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _first_that_works(job: Job, options: RunOptions, level: float, timeout_s: float) -> Estimate:
    """Trace with the null GPU, else with fake tensors, else on the CPU; the reason is the answer's first warning.

    Raises:
        JobError: the job's own code raised: on the null GPU as it would on a card, or on all three.
        TimeLimit: one of them took too long.
        CannotEstimate: none could trace it, for another reason.
    """
    try:
        return _on_null_gpu(job, options, level, timeout_s)
    except CannotEstimate as error:
        if not _may_be_the_tracers_fault(error):
            raise
        first = error
    reasons = f"the null GPU could not ({shortened(str(first), _SHOWN_REASON)})"
    try:
        found = _portable("fake", job, options, level, timeout_s)
    except CannotEstimate as error:
        if isinstance(error, TimeLimit):
            raise
        reasons += f"; fake tensors could not ({error})"
        try:
            found = _portable("cpu", job, options, level, timeout_s)
        except JobError as error:
            raise first if isinstance(first, JobError) else error from None
    return replace(found, warnings=(f"traced by the {found.tracer} tracer: {reasons}", *found.warnings))


def _may_be_the_tracers_fault(error: CannotEstimate) -> bool:
    """Return whether the null GPU itself may be the cause of a failure, so that another tracer may know better.

    What the job raised where the null GPU had told it nothing untrue, a card would make it raise too; the others check less.
    """
    if isinstance(error, JobError):
        return error.after_reads
    return isinstance(error, (NullGpuError, WorkerError)) and not isinstance(error, TimeLimit)


def _with_ceiling(found: Estimate, options: RunOptions, result: Result, level: float, timeout_s: float) -> Estimate:
    """Return `found` with the most that other values would lead to, where shapes depend on large ones which nobody knows.

    The job runs again on a card without an end: with the largest shapes which its operators can return, and with each yes for a
    no. A job which raises where an answer is the other one ends there on a GPU too: that way needs no bound.
    """
    kinds = {entry.kind for entry in result.ledger}
    ways: tuple[tuple[Entered, Answers], ...] = ((Entered.LARGEST, "largest"), (Entered.BRANCH, "otherwise"))
    runs = [answers for kind, answers in ways if kind in kinds]
    if options.answers != "drawn" or not (runs or found.open_calls):
        return found
    open_calls, ceiling = [*found.open_calls], found.reserved
    limit_s = min(timeout_s, 10 + 10 * found.seconds["total"])  # arbitrary: the other way may be a loop without an end
    for answers in runs:
        way = replace(options, answers=answers, follow_values=True, limited=False, expandable=result.was_expandable)
        try:
            if found.tracer == "nullgpu":
                other = _on_null_gpu(found.job, way, level, limit_s)
            else:
                other = _portable(found.tracer, found.job, way, level, limit_s)
        except CannotEstimate as error:
            if answers == "largest" or not isinstance(error, JobError):
                open_calls.append(f"the run with {answers} answers ({str(error)[:200]})")
            continue
        ceiling = max(ceiling, other.reserved)
        open_calls += other.open_calls
    open_calls = sorted(set(open_calls))
    warnings = [*found.warnings]
    if runs:
        warnings.append(
            "shapes depend on values of more than a million elements, which were drawn or not worked out: the most that is "
            f"reserved with others is {gib(ceiling)}, which the bound covers"
        )
    if open_calls:
        warnings.append(f"there is no largest shape, and so no bound, for {', '.join(open_calls)}: measure this job on a GPU")
    return replace(found, ceiling=ceiling if runs else None, open_calls=tuple(open_calls), warnings=tuple(warnings))


def _portable(tracer: str, job: Job, options: RunOptions, level: float, timeout_s: float) -> Estimate:
    """Trace the job without the null GPU, and simulate the allocator of a GPU."""
    started = time.perf_counter()
    result = _PORTABLE[tracer](job, options, timeout_s=timeout_s)
    assert result.trace is not None
    settings = Settings.parse(result.alloc_conf.value)
    traced_s = time.perf_counter() - started
    libraries = frozenset(name for name, uses in _FIRST_USE.items() if first_row(result.trace, uses) is not None)
    cuda_major = _assumed_stack(job, result).cuda_major or _ASSUMED_CUDA
    trace = _with_context(job, result.trace, cuda_major, libraries)
    found = simulate(trace, settings, Card(job.total_bytes))
    out_of_memory = None
    if found.out_of_memory is not None:
        end = found.out_of_memory
        place = ", ".join(filter(None, (f"step {end.step}", end.phase, end.module, end.op)))
        out_of_memory = f"CUDA out of memory. Tried to allocate {torch_size(end.size_bytes)} in {place}."
        found = simulate(trace, settings, Card())
        if found.out_of_memory is not None:
            raise DoesNotFit(f"The job asks for more than any card has: {out_of_memory}")
    smallest = min_feasible(found.requests, settings)
    seconds = {"trace": traced_s, "simulate": time.perf_counter() - started - traced_s}
    estimated = _estimate(
        _Traced(tracer, result, found.replayed(), found.allocated, found.reserved, smallest, libraries, cuda_major, seconds),
        job, level, timeout_s, out_of_memory,
    )  # fmt: skip
    return _with_ceiling(estimated, options, result, level, timeout_s)


def _on_null_gpu(job: Job, options: RunOptions, level: float, timeout_s: float) -> Estimate:
    started = time.perf_counter()
    worker = NullGpuTracer.shared()
    ready = time.perf_counter()
    cuda_major = (job.stack.cuda_major if job.stack is not None else None) or worker.cuda_major
    # Before the run it is not known which libraries the job touches; the common case decides what of the card is free.
    assumed = context_bytes(job.device.key, cuda_major, ("cublas", "cudnn"))
    options = replace(options, context_bytes=min(assumed.bytes, job.total_bytes))
    result = worker.trace(job, options, timeout_s=timeout_s)
    out_of_memory = None
    if result.status == "oom":
        out_of_memory = result.message
        options = replace(options, expandable=result.was_expandable)
        result = worker.trace(job, replace(options, limited=False), timeout_s=timeout_s)
        if result.status == "oom":
            raise DoesNotFit(f"The job asks for more than any card has: {result.message}")
        needed = context_bytes(job.device.key, cuda_major, _libraries(result))
        if needed.bytes < options.context_bytes:  # it does not touch all the libraries which were assumed: there is more room
            again = worker.trace(job, replace(options, context_bytes=needed.bytes), timeout_s=timeout_s)
            if again.status == "ok":
                result, out_of_memory = again, None
    assert result.trace is not None
    libraries, peaks = _libraries(result), result.trace.header["peaks"]
    trace = _with_context(job, result.trace, cuda_major, libraries)
    traced = time.perf_counter()
    try:
        smallest = min_feasible(trace, recorded_settings(trace))
    except UsageError:  # settings of a newer torch, say
        smallest = None
    seconds = {"start": ready - started, "trace": traced - ready, "simulate": time.perf_counter() - traced}
    found = _estimate(
        _Traced("nullgpu", result, trace, peaks["allocated"], peaks["reserved"], smallest, libraries, cuda_major, seconds),
        job, level, timeout_s, out_of_memory,
    )  # fmt: skip
    if any(entry.code is Code.NO_ORACLE for entry in result.ledger):
        why = f"convolution workspaces count as 0: {worker.cudnn_answer(job.stack)}"
        found = replace(found, warnings=(*found.warnings, why))
    return _with_ceiling(found, options, result, level, timeout_s)


@dataclass(frozen=True, slots=True)
class _Traced:
    """What a tracer found: its result, the trace with segments and context, the peaks and the smallest card in bytes."""

    tracer: str
    result: Result
    trace: Trace
    allocated: int
    reserved: int
    min_feasible: int | None
    libraries: frozenset[str]
    cuda_major: int
    seconds: dict[str, float]


def _estimate(traced: _Traced, job: Job, level: float, timeout_s: float, out_of_memory: str | None) -> Estimate:
    result, trace = traced.result, traced.trace
    context = context_bytes(job.device.key, traced.cuda_major, traced.libraries)
    open_calls = words(result.ledger, Entered.OPEN)
    missing = [entry for entry in result.ledger if entry.is_unknown]
    unknown = (*words(missing, *Entered), *(Entry.of(Entered.OPEN, Code.UNBOUNDED, 1, name=name).words for name in open_calls))
    warnings = list(trace.header.get("warnings", []))
    if context.assumed:
        low, high = gib(context.low_bytes), gib(context.high_bytes)
        warnings.append(f"context {gib(context.bytes)} is assumed, not measured ({low} to {high}): {context.provenance}")
    shapes = sorted(entry.name for entry in missing if entry.code is Code.DRAWN_SHAPE)
    if shapes:
        warnings.append(f"shapes depend on values, which were drawn at random ({', '.join(shapes)}): the bound is wider for it")
    others = words((e for e in missing if e.code not in (Code.DRAWN_SHAPE, Code.OTHER_CUDNN)), *Entered)
    warnings += [f"not answered by NVIDIA's own rules: {name}; the bound is wider for it" for name in others]
    warnings += [
        f"{e.words} ({e.hits} times; at most {gib(e.size_bytes // e.hits)} each; the bound's residuals were measured with it)"
        for e in result.ledger
        if e.kind is Entered.BOUNDED
    ]
    stack = _assumed_stack(job, result)
    is_another = any(entry.code is Code.OTHER_CUDNN for entry in missing)
    warnings += _stack_warnings(job, stack, result.torch, traced.libraries, is_another)
    if result.reads:
        warnings.append(
            f"the host read from the device {result.reads} times and got zeros: a branch on such a value may go the other way"
        )
    drawn = sum(e.hits for e in result.ledger if e.kind is Entered.DRAWN)
    if drawn:
        warnings.append(
            f"the host read {drawn} numbers that depend on weights, and got random ones: a branch may go another way"
        )
    if out_of_memory is not None:
        warnings.append(
            f"does not fit on {job.device.name} ({gib(job.total_bytes)}); the peaks are those of a card without an end"
        )
    if result.steps < job.training.steps and job.script is not None:
        warnings.append(f"the script ended after {result.steps} of {job.training.steps} optimizer steps")
    if traced.min_feasible is None:
        warnings.append("min_feasible is unknown: no card is large enough, or the allocator's settings are not known")
    if result.foreign:
        raise CannotEstimate(
            f"NVIDIA's own libraries were loaded beside the null GPU ({', '.join(result.foreign)}): the numbers cannot be "
            "trusted. Please report the torch version and how it was installed."
        )
    return Estimate(
        job=job,
        trace=trace,
        allocated=traced.allocated,
        reserved=traced.reserved,
        process=int(process_bytes(trace).max(initial=0)),
        min_feasible=traced.min_feasible,
        context=context,
        level=level,
        timeout_s=timeout_s,
        tracer=traced.tracer,
        alloc_conf=result.alloc_conf,
        torch=result.torch,
        cuda_major=traced.cuda_major,
        stack=stack,
        steps=result.steps if job.training.mode == "train" or job.script else job.training.steps,
        out_of_memory=out_of_memory,
        libraries=traced.libraries,
        unknown=unknown,
        noops=words(result.ledger, Entered.NOOP),
        host_reads=result.reads + drawn,
        open_calls=open_calls,
        warnings=tuple(warnings),
        seconds={**traced.seconds, "total": sum(traced.seconds.values())},
        max_resident_bytes=result.max_resident_bytes,
    )


def _assumed_stack(job: Job, result: Result) -> Stack:
    """Return the stack for which the answer holds: the job's own, and what it does not say from this machine."""
    here = replace(installed_stack(), torch=result.torch)
    return here if job.stack is None else job.stack.over(here)


def _stack_warnings(job: Job, stack: Stack, torch: str, libraries: frozenset[str], is_another: bool) -> list[str]:
    """Return what is to be said of a stack which is not this machine's."""
    warnings = []
    if stack.torch is not None and not same_minor(stack.torch, torch):
        warnings.append(
            f"requests and allocator are those of the installed torch {torch}, the job's stack has {stack.torch}: versions "
            "differ by up to 7 % on the same job"  # measured: docs/accuracy.md, 2026-11
        )
    if "cudnn" in libraries:
        said = warning_of(job.stack)
        wider = "; the bound is wider for it" if is_another else ""
        warnings += [*stack.notes, *([f"convolution workspaces: {said}{wider}"] if said else [])]
    return warnings


def _libraries(result: Result) -> frozenset[str]:
    """Return which libraries the job touched that take memory of their own."""
    return frozenset(entry.library for entry in result.ledger if entry.library)


def _with_context(job: Job, trace: Trace, cuda_major: int, libraries: frozenset[str]) -> Trace:
    """Return the trace with what the process takes beside the allocator: each library's part before its first operator."""
    loaded: set[str] = set()
    taken = []
    at_bytes = 0
    for library in ("", *LIBRARIES):
        if library and library not in libraries:
            continue
        loaded |= {library} - {""}
        total_bytes = context_bytes(job.device.key, cuda_major, loaded).bytes
        row = first_row(trace, _FIRST_USE[library]) if library in _FIRST_USE else 0
        taken.append((row or 0, total_bytes - at_bytes))
        at_bytes = total_bytes
    return with_context(trace, sorted(taken))
