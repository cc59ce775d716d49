"""One measured job in a process of its own, on the GPU or the null GPU."""

from __future__ import annotations

import base64
import functools
import itertools
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vramcast.datasets.collector.counters import counters
from vramcast.datasets.collector.nvml import Nvml, NvmlAbsent
from vramcast.datasets.run import Status, Workload
from vramcast.hardware.cards import DEVICES
from vramcast.tracer.hooks import torch_api

if TYPE_CHECKING:
    from vramcast.tracer.format.trace import Trace

_MESSAGE_CHARACTERS = 500  # arbitrary: torch's out-of-memory messages have about 400


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """A job to run, and the way to observe it.

    Attributes:
        recorded: Whether the allocator's history is recorded; a bare run shows that recording changes no number.
        alone: Whether no other job is on the card, so that any increase in its use is this job's.
        uuid: The card's UUID, for NVML.
    """

    workload: Workload
    recorded: bool = True
    alone: bool = True
    uuid: str | None = None


@dataclass(slots=True)
class MeasuredFacts:
    """The result: the fields of `Measurement` and `Workload` that only the job's own process knows.

    Attributes:
        history: {"first", "last"}: `packed` request sizes of the build and first step, and of the last step.
    """

    pid: int
    status: Status = "ok"
    message: str = ""
    counters: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    step_ms: list[float] = field(default_factory=list)
    workspaces: list[tuple[str, int]] = field(default_factory=list)
    model_sha256: str | None = None
    features: dict[str, float] = field(default_factory=dict)
    history: dict[str, str] = field(default_factory=dict)


def warm_up() -> None:
    """Import the packages most jobs need; none of them may touch CUDA, because the worker forks."""

    for package in ("torchvision", "timm", "transformers"):
        with suppress(ImportError, OSError, RuntimeError):  # not installed, or not for this torch
            __import__(package)


def run_job(request: MeasureRequest) -> MeasuredFacts:
    """Run the job and return the observations; the job's own failures are part of them."""
    import torch

    answer = MeasuredFacts(os.getpid())
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = request.workload.alloc_conf or ""
    if request.workload.alloc_conf:
        torch_api.set_allocator_settings(request.workload.alloc_conf)
    answer.counters["context_bytes"] = _context_bytes(request)
    recorder: Any = None
    try:
        if request.workload.cap_bytes is not None:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(request.workload.cap_bytes / total)
        if request.recorded:
            from vramcast.tracer.recording.recorder import Recorder

            recorder = Recorder()
            recorder.start()
        with _timed_steps(answer):
            _run(request.workload, answer)
            torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        answer.status, answer.message = "oom", str(error)[:_MESSAGE_CHARACTERS]
    except Exception as error:
        answer.status, answer.message = "error", f"{type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS]
    answer.counters.update(counters(answer.message))
    if recorder is not None and answer.status in ("ok", "oom"):
        _keep(recorder.stop(header={}), answer)
    return answer


def _context_bytes(request: MeasureRequest) -> int | None:
    """Initialize CUDA and return the memory it took on the card; None: other processes use the card too, or NVML is absent."""
    import torch

    try:
        nvml = Nvml(request.uuid) if request.alone else None
        before = nvml.used_bytes() if nvml else 0
    except NvmlAbsent:
        nvml = None
    torch.cuda.init()
    torch.cuda.synchronize()
    return nvml.used_bytes() - before if nvml else None


def _run(workload: Workload, answer: MeasuredFacts) -> None:
    import torch

    from vramcast.datasets.collector import model_facts
    from vramcast.tracer.program import model_program

    def look(model: torch.nn.Module) -> None:
        answer.model_sha256, answer.features = model_facts.model_sha256(model), model_facts.features(model)
        model_program.fill_weights(model)

    # The card is the real one; the job's own device only matters for estimates. The list is our own.
    job = workload.job(DEVICES["h200"], trust=True)
    host_batch = functools.partial(model_program.host_batch, write=model_program.write_input)
    model_program.run(job, torch.device("cuda"), model_program.Hooks(host_batch=host_batch, on_model=look))


@contextmanager
def _timed_steps(answer: MeasuredFacts) -> Iterator[None]:
    """Time steps, synchronizing the card at the end of each; the first includes moving the model to the card."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    last = time.perf_counter()

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal last
        torch.cuda.synchronize()
        now = time.perf_counter()
        answer.steps += 1
        answer.step_ms.append(round(1000 * (now - last), 3))
        last = now

    handle = register_optimizer_step_post_hook(after_step)
    try:
        yield
    finally:
        handle.remove()


# ------------------------------------------------------------------------------------------------ the history
def _keep(trace: Trace, answer: MeasuredFacts) -> None:
    """Copy the parts of the trace that a data set stores into the answer."""
    import numpy as np

    from vramcast.tracer.format.trace import Action

    answer.workspaces = workspaces(trace)
    ooms = np.flatnonzero(trace.action == Action.OOM)
    if len(ooms):
        answer.counters["oom_requested_bytes"] = int(trace.size_bytes[ooms[-1]])
    last = int(trace.step.max(initial=-1))
    answer.history = {
        "first": packed(signed_sizes(trace, trace.step <= 0)),
        "last": packed(signed_sizes(trace, trace.step == last)),
    }


def signed_sizes(trace: Trace, rows: Any) -> Any:
    """Return the requested bytes (+) and completed frees (-) among `rows`, int64, in order."""
    import numpy as np

    from vramcast.tracer.format.trace import Action

    wanted = rows & ((trace.action == Action.ALLOC) | (trace.action == Action.FREE_COMPLETED))
    sign = np.where(trace.action[wanted] == Action.ALLOC, 1, -1)
    return sign * trace.size_bytes[wanted]


def packed(sizes: Any) -> str:
    """Return int64 sizes as base64 of zlib of little-endian bytes."""
    return base64.b64encode(zlib.compress(sizes.astype("<i8").tobytes(), 9)).decode()


def workspaces(trace: Trace) -> list[tuple[str, int]]:
    """Return (operator, bytes) of blocks that a convolution allocated and freed with nothing in between, in order.

    PyTorch handles a workspace that way: it is allocated after the outputs, and freed when the kernel is queued. Each pair
    is listed once.
    """
    from vramcast.tracer.format.trace import Action

    events = [i for i in range(len(trace)) if trace.action[i] in (Action.ALLOC, Action.FREE_REQUESTED)]
    found: dict[tuple[str, int], None] = {}
    for this, following in itertools.pairwise(events):
        if trace.action[this] != Action.ALLOC or trace.action[following] != Action.FREE_REQUESTED:
            continue
        operator = trace.operator_at(this)
        if trace.block[following] == this and operator.is_convolution:
            found[operator.name, int(trace.size_bytes[this])] = None
    return list(found)
