"""What every tracer gives: an `Observation` of one job; and who may be asked for one: a `Tracer`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from vramcast.core.errors import TraceFileError
from vramcast.core.plain import from_plain, to_plain
from vramcast.jobs.job import Job
from vramcast.tracer.format.ledger import Entered, Entry
from vramcast.tracer.format.trace import Trace
from vramcast.tracer.protocol.alloc_conf import AllocConf, Source
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.run_options import RunOptions

_FACTS: Final = "observation"  # in a trace's header: all of an observation which is not the trace


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tracer saw of one job: its trace, with operators and ledger in it, and the facts around.

    Attributes:
        trace: The requests; with addresses, segments and peaks where an allocator answered them.
        tracer: Who saw it.
        torch: Version of the torch which ran the job.
        alloc_conf: The allocator's settings which were in force.
        steps: Optimizer steps which were seen.
        out_of_memory: torch's own message where the card was full, which ended the job; "": it was not.
        was_expandable: Whether the allocator ever had expandable segments.
        foreign: Files of NVIDIA's own libraries which were loaded beside stand-ins: nothing here can be trusted then.
        notes: What the tracer has to say to whoever reads the estimate.
        max_resident_bytes: Main memory which its process took at most.
        beside: Of a job of several ranks another one of them: its number and its trace. A file does not keep it.
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

    @classmethod
    def of(cls, result: Result, tracer: str, *, notes: tuple[str, ...] = ()) -> Observation:
        """Return the observation in a result that was checked."""
        assert result.trace is not None
        return cls(
            result.trace, tracer, result.torch, result.alloc_conf, result.steps,
            result.message if result.status == "oom" else "", result.was_expandable, tuple(result.foreign),
            (*notes, *result.notes), result.max_resident_bytes, result.beside,
        )  # fmt: skip

    @property
    def ledger(self) -> tuple[Entry, ...]:
        """Calls which were not fully answered."""
        return self.trace.ledger

    @property
    def is_answered(self) -> bool:
        """Whether an allocator answered the requests; else they must be played against one."""
        return "peaks" in self.trace.header

    @property
    def libraries(self) -> frozenset[str]:
        """Which libraries the job used that take memory of their own: those which were called, else by its operators."""
        if self.is_answered:
            return frozenset(entry.library for entry in self.ledger if entry.library)
        return frozenset(operator.library.loaded for operator in self.trace.operators if operator.library.loaded)

    @property
    def outside_bytes(self) -> int:
        """What libraries of the job took from the card at most, past PyTorch's allocator."""
        return sum(entry.size_bytes for entry in self.ledger if entry.kind is Entered.OUTSIDE)

    def count(self, kind: Entered) -> int:
        """Return how often calls were entered under `kind`."""
        return sum(entry.hits for entry in self.ledger if entry.kind is kind)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a trace file whose header has the facts.

        Raises:
            TraceFileError: the file cannot be written.
        """
        facts = _Facts(
            self.tracer, self.torch, (self.alloc_conf.value, self.alloc_conf.source), self.steps, self.out_of_memory,
            self.was_expandable, self.notes, self.max_resident_bytes,
        )  # fmt: skip
        replace(self.trace, header={**self.trace.header, _FACTS: to_plain(facts)}).save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Observation:
        """Return the observation in a file which `save` wrote; it may come from anywhere, and nothing in it is run.

        Raises:
            TraceFileError: it is damaged, or a trace without the facts.
        """
        trace = Trace.load(path)
        if _FACTS not in trace.header:
            raise TraceFileError(f"'{path}' is no observation (its header has no facts): save one again.")
        facts = from_plain(_Facts, trace.header[_FACTS], f"'{path}' is no observation: its {_FACTS}", raises=TraceFileError)
        header = {name: value for name, value in trace.header.items() if name != _FACTS}
        return cls(
            replace(trace, header=header), facts.tracer, facts.torch, AllocConf(*facts.alloc_conf), facts.steps,
            facts.out_of_memory, facts.was_expandable, notes=facts.notes, max_resident_bytes=facts.max_resident_bytes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Facts:
    """All of an observation that is not its trace, as a trace's header has it."""

    tracer: str
    torch: str
    alloc_conf: tuple[str, Source]
    steps: int
    out_of_memory: str
    was_expandable: bool
    notes: tuple[str, ...]
    max_resident_bytes: int


class Tracer(Protocol):
    """Whoever can observe a job: the null GPU, fake tensors, the CPU, a recording."""

    @property
    def name(self) -> str:
        """What it is called."""

    def observe(self, job: Job, options: RunOptions, *, timeout_s: float) -> Observation:
        """Return what is seen of `job`; of one which ends because its card is full, what was seen until then.

        Args:
            job: What to run.
            options: How.
            timeout_s: It is stopped after so many seconds.
        Raises:
            JobError: the job's own code raised.
            UsageError: the job's description is wrong.
            CannotEstimate: it cannot be observed, for another reason.
        """


@dataclass(frozen=True, slots=True)
class RecordedTracer:
    """Runs nothing: gives an observation, or asks a function for one. For tests, and for what came from elsewhere.

    Attributes:
        answer: The observation, or a function of job and options which returns one or raises.
    """

    answer: Observation | Callable[[Job, RunOptions], Observation]
    name: str = "recorded"

    def observe(self, job: Job, options: RunOptions, *, timeout_s: float) -> Observation:
        """See `Tracer`; no time passes."""
        return self.answer if isinstance(self.answer, Observation) else self.answer(job, options)
