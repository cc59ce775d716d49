"""`Observation`, the result of every tracer for one job, and `Tracer`, the protocol of its producers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from vramcast.core.brief import brief
from vramcast.core.errors import TraceFileError
from vramcast.core.plain import from_plain, to_plain
from vramcast.jobs.adapters import ModelAdapters
from vramcast.jobs.job import Job
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.format.ledger import CallHandling, Entry
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.protocol.alloc_conf import AllocConf, Source
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions

_FACTS: Final = "observation"  # in a trace's header: everything in an observation except the trace


@brief
@dataclass(frozen=True, slots=True)
class Observation:
    """The trace of one job, with operators and ledger in it, and further facts.

    Attributes:
        trace: The requests; with addresses, segments and peaks if an allocator answered them.
        tracer: Name of the tracer.
        torch: Version of torch that ran the job.
        alloc_conf: The allocator settings in force.
        steps: Number of optimizer steps observed.
        out_of_memory: torch's own message if a full card ended the job; otherwise "".
        was_expandable: Whether the allocator ever had expandable segments.
        foreign: Files of NVIDIA's own libraries that were loaded in addition to stand-ins: the result is then unreliable.
        notes: The tracer's notes for readers of the estimate.
        max_resident_bytes: Peak main memory of its processes.
        grown_bytes: The same without what its own process began with; None: unknown. A file does not keep it.
        beside: For a job of several ranks, another rank's number and trace. A file does not keep it.
        inputs: The inputs that were made from the job's sizes, and its adapters, if it has any. A file does not keep them.
    """

    trace: Trace
    tracer: str
    torch: str = ""
    alloc_conf: AllocConf = field(default_factory=AllocConf)
    steps: int = 0
    out_of_memory: str = ""
    was_expandable: bool = False
    foreign: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    max_resident_bytes: int = 0
    beside: tuple[int, Trace] | None = None
    inputs: Inputs | None = None
    grown_bytes: int | None = None

    @classmethod
    def of(cls, result: Result, tracer: str, *, notes: tuple[str, ...] = ()) -> Observation:
        """Return the observation in a checked result."""
        assert result.trace is not None
        return cls(
            result.trace, tracer, result.torch, result.alloc_conf, result.steps,
            result.message if result.status == "oom" else "", result.was_expandable, tuple(result.foreign),
            (*notes, *result.notes), result.max_resident_bytes, result.beside,
            result.inputs, result.grown_bytes,
        )  # fmt: skip

    @property
    def adapted(self) -> ModelAdapters | None:
        """Return the adapters of LoRA or QLoRA, if the job has any."""
        return self.inputs.adapted if self.inputs is not None else None

    @property
    def ledger(self) -> tuple[Entry, ...]:
        """Return the calls that were not fully answered."""
        return self.trace.ledger

    @property
    def is_answered(self) -> bool:
        """Return whether an allocator answered the requests; otherwise they must be played against one."""
        return "peaks" in self.trace.header

    @property
    def libraries(self) -> frozenset[str]:
        """Return the job's libraries that take memory of their own: the libraries called, or else those of its operators."""
        if self.is_answered:
            return frozenset(entry.library for entry in self.ledger if entry.library)
        return frozenset(operator.library.loaded for operator in self.trace.operators if operator.library.loaded)

    @property
    def outside_bytes(self) -> int:
        """Return the most bytes that the job's libraries took from the card outside PyTorch's allocator."""
        return sum(entry.size_bytes for entry in self.ledger if entry.kind is CallHandling.OUTSIDE)

    def count(self, kind: CallHandling) -> int:
        """Return the number of calls entered under `kind`."""
        return sum(entry.hits for entry in self.ledger if entry.kind is kind)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the observation as a trace file with the facts in its header.

        Raises:
            TraceFileError: The file cannot be written.
        """
        facts = _Facts(
            self.tracer, self.torch, (self.alloc_conf.value, self.alloc_conf.source), self.steps, self.out_of_memory,
            self.was_expandable, self.notes, self.max_resident_bytes,
        )  # fmt: skip
        replace(self.trace, header={**self.trace.header, _FACTS: to_plain(facts)}).save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Observation:
        """Return the observation in a file written by `save`; an untrusted file is safe, because nothing in it is run.

        Raises:
            TraceFileError: The file is damaged, or a trace without the facts.
        """
        trace = Trace.load(path)
        if _FACTS not in trace.header:
            raise TraceFileError(f"'{path}' is not an observation (its header has no facts): save it again.")
        facts = from_plain(_Facts, trace.header[_FACTS], f"'{path}' is not an observation: its {_FACTS}", raises=TraceFileError)
        header = {name: value for name, value in trace.header.items() if name != _FACTS}
        return cls(
            replace(trace, header=header), facts.tracer, facts.torch, AllocConf(*facts.alloc_conf), facts.steps,
            facts.out_of_memory, facts.was_expandable, notes=facts.notes, max_resident_bytes=facts.max_resident_bytes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts of an observation other than its trace, as stored in the trace's header."""

    tracer: str
    torch: str
    alloc_conf: tuple[str, Source]
    steps: int
    out_of_memory: str
    was_expandable: bool
    notes: tuple[str, ...]
    max_resident_bytes: int


class Tracer(Protocol):
    """Anything that can observe a job: the null GPU, fake tensors, the CPU, a recording."""

    @property
    def name(self) -> str:
        """Return the name of the tracer."""

    def observe(self, job: Job, options: RunOptions, *, timeout_s: float) -> Observation:
        """Return the observation of `job`; if its card is full, the observation up to that point.

        Args:
            job: The job to run.
            options: Options of the run.
            timeout_s: Seconds after which the job is stopped.
        Raises:
            JobError: The job's own code raised.
            UsageError: The job's description is wrong.
            CannotEstimate: The job cannot be observed for another reason.
        """


@dataclass(frozen=True, slots=True)
class RecordedTracer:
    """A tracer that runs nothing: returns an observation, or calls a function for one. For tests and imported recordings.

    Attributes:
        answer: The observation, or a function of job and options that returns one or raises.
    """

    answer: Observation | Callable[[Job, RunOptions], Observation]
    name: str = "recorded"

    def observe(self, job: Job, options: RunOptions, *, timeout_s: float) -> Observation:
        """Return the answer; see `Tracer`. No time passes."""
        return self.answer if isinstance(self.answer, Observation) else self.answer(job, options)
