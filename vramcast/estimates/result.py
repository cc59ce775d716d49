"""The answer: `Estimate`, with its three peaks, its bound, and where the bytes are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from vramcast.estimates.bounds.learned import LearnedBound
from vramcast.estimates.bounds.parts import MarginPart, part_of_another_run
from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.communicators import Communicator, context_of_process, sizes_of
from vramcast.estimates.growth import Growth
from vramcast.estimates.phases import Course, course_of
from vramcast.estimates.verdict import Need, Verdict, doubts, verdict_of
from vramcast.estimates.view import Viewable
from vramcast.hardware.cards import card_bytes, device
from vramcast.hardware.context import Context
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.jobs.job import Job
from vramcast.simulator import curves
from vramcast.simulator.fragmentation import Fragmentation, fragmentation
from vramcast.simulator.settings import Settings
from vramcast.simulator.what_if import Case, what_if
from vramcast.tracer.format.ledger import Entered
from vramcast.tracer.format.nccl_calls import calls_in
from vramcast.tracer.format.rank_facts import (
    Held,
    ProcessPeak,
    RankPeaks,
    beside_bytes,
    processes_of,
    ranks_of,
    sharding_of,
    world_size_of,
)
from vramcast.tracer.format.snapshot import write_snapshot
from vramcast.tracer.format.trace import Category, Phase, Trace
from vramcast.tracer.protocol.alloc_conf import AllocConf
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions

_NAMES = {
    Category.PARAMETER: "parameters",
    Category.GRADIENT: "gradients",
    Category.OPTIMIZER_STATE: "optimizer_state",
    Category.ACTIVATION: "activations",
    Category.INPUT: "inputs",
    Category.WORKSPACE: "workspaces",
    Category.TEMPORARY: "temporaries",
}


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks on a card of one speed, in bytes."""

    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class CardSpeed:
    """What the card's speed can change.

    Blocks which several streams use, and the tensors of collectives, come back when an event has happened: on an infinitely
    fast card at once, on an infinitely slow one when the host has waited for it. A job's peaks are those of the fast end, which
    logged runs support; a second run gives the slow end, which the bound covers (docs/multi-gpu.md, "Streams and time").

    Attributes:
        decides: Whether it decided anything at all: else both ends are one.
        fast: Peaks on an infinitely fast card: the estimate's own.
        slow: Those on an infinitely slow one; None: the job was not run on it.
    """

    decides: bool
    fast: Peaks
    slow: Peaks | None


class Maker(Protocol):
    """What an estimate remembers of the `Estimator` that made it: how others that are compared with it are made."""

    @property
    def level(self) -> float:
        """See `Estimator`."""

    @property
    def artifact(self) -> str | os.PathLike[str] | None:
        """See `Estimator`."""

    def estimate_job(self, job: Job, options: RunOptions = AS_USUAL) -> Estimate:
        """Return the estimate of another job."""

    def apply_artifact(self, estimate: Estimate) -> Estimate:
        """Return an estimate with the bound of the artifact in use."""

    def changed(self, **changes: Any) -> Maker:
        """Return one that makes them otherwise."""


@dataclass(frozen=True, slots=True)
class Estimate(Viewable):
    """What a job takes from a card. Sizes are integer bytes unless the name says otherwise.

    Attributes:
        job: What was estimated: its model or command, its batch, how it is trained, on which card.
        trace: Every request for memory of the job, answered: one row an event.
        allocated: Peak of live blocks, as `torch.cuda.max_memory_allocated()` would say.
        reserved: Peak of the allocator's segments, as `torch.cuda.max_memory_reserved()` would say.
        process: What the job takes from the card, as nvidia-smi would say: reserved + CUDA context + libraries.
        min_feasible: The smallest card on which the job runs, the allocator releasing and retrying; None: unknown.
        out_of_memory: torch's own message when the job does not fit on the card it was asked for; the peaks are then
            those of an unlimited card.
        context: What the process takes in addition to PyTorch's segments, with its plausible range: CUDA's context, libraries.
        tracer: Which tracer observed the job: nullgpu, fake or cpu.
        torch: Version of the torch that ran it.
        cuda_major: CUDA's major version on the card's machine.
        steps: Training steps that were observed; forward passes in mode infer.
        stack: torch, CUDA and cuDNN of the card's machine, as far as they are known, and who says so.
        alloc_conf: The allocator's settings in force, and who chose them.
        libraries: Which libraries the job used that take memory of their own.
        unknown: Calls which were refused or answered with an assumption, by name: each widens the bound.
        noop_calls: Calls, by name, that return nothing and were left out.
        host_reads: How often the host read a number of the card that nobody computed.
        max_shape_reserved_bytes: The reserved peak where every shape that depends on something large is the largest possible;
            None: there is no such shape. Every bound covers it.
        slow_card_peaks: The peaks on an infinitely slow card, where the job was run on it too; None: it was not. Every bound
            covers them.
        unbounded_calls: Calls, by name, of which no largest shape exists, or none could be traced: no bound covers them.
        warnings: What the reader should know.
        seconds: How long the estimate took, by part: start, trace, simulate, learn where an artifact was used, total.
        max_resident_bytes: Peak of the main memory of the process that traced the job.
        traits: The job's class, which decides how far first principles may lie off; see `vramcast.learner.traits`.
        other_rank: Of a job of several ranks another one than the fullest, which reserves least: its number and its trace.
        growth: What a loop of the job keeps from step to step, and with which step the card is full; None: all settle.
        estimator: How it was made: estimates of other jobs which are to be compared with it are made by the same one.
        bound: What stands above the peaks, which stay those of first principles: with a learned one `quantile(0.5)` is the
            corrected process peak.
    """

    job: Job
    trace: Trace
    allocated: int
    reserved: int
    process: int
    min_feasible: int | None
    context: Context
    estimator: Maker
    bound: PublicBound | LearnedBound
    tracer: str
    torch: str
    cuda_major: int
    steps: int
    stack: Stack = field(default_factory=Stack)
    alloc_conf: AllocConf = field(default_factory=AllocConf)
    out_of_memory: str | None = None
    libraries: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()
    noop_calls: tuple[str, ...] = ()
    host_reads: int = 0
    max_shape_reserved_bytes: int | None = None
    slow_card_peaks: Peaks | None = None
    unbounded_calls: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    max_resident_bytes: int = 0
    traits: Mapping[str, str] = field(default_factory=dict)
    other_rank: tuple[int, Trace] | None = field(default=None, repr=False)
    growth: Growth | None = None

    # -------------------------------------------------------------------------------------------- what was seen
    @property
    def course(self) -> Course:
        """How far a training command was followed, with the peaks of each phase; of a model's job it is empty."""
        return course_of(self.trace)

    @property
    def world_size(self) -> int:
        """How many ranks the job has."""
        return world_size_of(self.trace)

    @property
    def ranks(self) -> tuple[RankPeaks, ...]:
        """The ranks which were traced, each with its peaks; of a job of one rank none. The estimate is of the fullest."""
        return ranks_of(self.trace)

    @property
    def processes(self) -> tuple[ProcessPeak, ...]:
        """The processes that used the card, the traced one first; of a job of one process none.

        `process` covers those that lived at once.
        """
        return processes_of(self.trace)

    @property
    def sharding(self) -> tuple[Held, ...]:
        """What the rank which the estimate is of holds of each module's parameters; of a job of one rank nothing."""
        return sharding_of(self.trace)

    @property
    def communicators(self) -> tuple[Communicator, ...]:
        """NCCL's communicators of the process, with what each is taken to hold of the card."""
        return sizes_of(calls_in(self.trace.ledger), self.job.device, self.stack.torch)

    @property
    def streams(self) -> CardSpeed:
        """What the card's speed can change of the peaks, through blocks which several streams use."""
        fast = Peaks(self.allocated, self.reserved)
        decides = any(entry.kind is Entered.SPEED for entry in self.trace.ledger)
        return CardSpeed(decides, fast, self.slow_card_peaks if decides else fast)

    # -------------------------------------------------------------------------------------------- bound
    @property
    def level(self) -> float:
        """Confidence level of `upper_bound`, in (0, 1)."""
        return self.estimator.level

    def quantile(self, level: float) -> int:
        """Return the bytes of the card which the job stays below with probability `level`.

        By the artifact in use (`vramcast.estimates.bounds.learned`), else by the residuals of public runs
        (`vramcast.estimates.bounds.public`).
        """
        return self._quantile(level, self.job.device, self.context)

    def _quantile(self, level: float, card: Device, context: Context) -> int:
        found = self.bound.quantile(level, card, context)
        above_bytes = max(self._other_runs().values(), default=0)
        if above_bytes <= self.reserved or level <= 0.5:
            return found
        return max(found, PublicBound(above_bytes, self.libraries, self.unknown).quantile(level, card, context))

    def _other_runs(self) -> dict[str, int]:
        """Return what other runs of the job reserve, by what they differ in."""
        slow, growth = self.slow_card_peaks, self.growth
        found = {
            "values": self.max_shape_reserved_bytes,
            "speed": slow.reserved if slow is not None else None,
            "growth": growth.reserved_at_end if growth is not None else None,
        }
        return {kind: size for kind, size in found.items() if size is not None}

    @property
    def upper_bound(self) -> int:
        """The process peak's bound at `level`."""
        return max(self.quantile(self.level), self.process)

    def margin(self, level: float | None = None) -> tuple[MarginPart, ...]:
        """Return what the bound's margin above the point consists of, largest part first, and what would make it smaller.

        Args:
            level: Of the bound; default: the estimate's own.
        """
        level = self.level if level is None else level
        found = self.bound.margin(level, self.job.device, self.context)
        rest = self.quantile(level) - self.bound.quantile(level, self.job.device, self.context)
        if not rest:
            return tuple(found)
        others = self._other_runs()
        return (*found, part_of_another_run(max(others, key=lambda kind: others[kind]), rest))

    @property
    def card_bytes(self) -> int:
        """The size of the card which the job was estimated for."""
        return self.job.total_bytes

    def need(self, on: str | Device | None = None, *, level: float | None = None) -> Need:
        """Return what the job needs of a card.

        Args:
            on: A device; default: the one the job was traced for. For another one the same reserved peak is held against
                its size and context: trace for that device (`estimate(..., device=on)`) to have its own kernel and
                workspace choices.
            level: Of the bound, in (0, 1); default: the estimate's own.
        """
        own = self.job.device.with_memory(self.job.total_bytes)
        card = own if on is None else on if isinstance(on, Device) else device(on)
        context = self.context
        if on is not None:
            context = context_of_process(
                card, self.cuda_major, self.stack.torch, self.libraries, self.trace, context.outside_bytes
            )
        point_bytes = self.process if on is None else self.reserved + context.bytes
        bound_bytes = max(self._quantile(self.level if level is None else level, card, context), point_bytes)
        was_full = self.out_of_memory is not None and card.key == own.key and card.total_bytes <= own.total_bytes
        return Need(card, point_bytes, bound_bytes, was_full or point_bytes > card.total_bytes)

    def verdict_on(self, on: str | Device | None = None, *, level: float | None = None) -> Verdict:
        """Return whether the job fits on a card, and why. Args: see `need`."""
        return verdict_of(self, self.need(on, level=level), self.level if level is None else level)

    @property
    def verdict(self) -> Verdict:
        """Whether the job fits on its own card, and why."""
        return self.verdict_on()

    def fits(self, on: str | Device | None = None, *, level: float | None = None) -> bool:
        """Return whether the verdict is *fits*: the bound is no larger than the card, and nothing that matters is unknown.

        Args: see `need`.
        """
        return self.verdict_on(on, level=level).value == "fits"

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is unknown and matters, in words: where there is any, no bound holds for the whole job."""
        return tuple(doubts(self))

    # -------------------------------------------------------------------------------------------- where the bytes are
    @property
    def breakdown(self) -> dict[str, int]:
        """Bytes by category at the peak of live blocks; with fragmentation and context they sum to `process`."""
        _, row = self.trace.peak_live()
        by_category = self.trace.by_category_at(row) if row >= 0 else {}
        parts = {name: by_category.get(category, 0) for category, name in _NAMES.items()}
        parts["temporaries"] += by_category.get(Category.UNKNOWN, 0)
        parts["fragmentation"] = self.process - self.context.bytes - sum(parts.values())
        others = beside_bytes(self.trace)
        parts["context"] = self.context.bytes - others
        if others:
            parts["other_processes"] = others
        return parts

    @property
    def workspace_bytes(self) -> int:
        """Peak of what libraries were handed as workspace."""
        return int(curves.live_bytes(self.trace, Category.WORKSPACE).max(initial=0))

    @property
    def timeline(self) -> list[tuple[int, str, int, int]]:
        """(step, phase, live bytes, reserved bytes) after every event which changed one of them."""
        rows = curves.changed_rows(self.trace)
        names = [phase.name.lower() for phase in Phase]
        phases = [names[code] for code in self.trace.phase[rows].tolist()]
        live, reserved = curves.live_bytes(self.trace)[rows], self.trace.reserved_bytes()[rows]
        return list(zip(self.trace.step[rows].tolist(), phases, live.tolist(), reserved.tolist(), strict=True))

    @property
    def by_module(self) -> dict[str, int]:
        """Live bytes at the peak by the module which asked for them, largest first; "" is outside of all modules."""
        _, row = self.trace.peak_live()
        return curves.bytes_by_module(self.trace, row)

    @property
    def peak_at(self) -> dict[str, Any]:
        """Where the peak of live blocks is reached: step, phase, module, operator."""
        _, row = self.trace.peak_live()
        if row < 0:
            return {"step": None, "phase": None, "module": None, "op": None}
        operator = self.trace.operator_at(row)
        return {
            "step": int(self.trace.step[row]),
            "phase": Phase(self.trace.phase[row]).name.lower(),
            "module": operator.module or None,
            "op": operator.name or None,
        }

    # -------------------------------------------------------------------------------------------- other circumstances
    def what_if(self, settings: Iterable[str] = ("",), cards: Iterable[int | str | None] = (None,)) -> list[Case]:
        """Return what the job's requests come to under other allocator settings and on other cards, without running it again.

        Args:
            settings: Values of PYTORCH_CUDA_ALLOC_CONF; "" is torch's default.
            cards: Keys of `vramcast.devices.DEVICES`, sizes (`12 << 30`, `"12GiB"`), or None: an unlimited card.
        Returns:
            A case for each setting on each card, in that order; `vramcast.case_table` prints them.
        Raises:
            UsageError: A setting or a card is not known.
        """
        sizes = [card_bytes(card) if isinstance(card, str) else card for card in cards]
        return what_if(self.trace, [Settings.parse(text) for text in settings], sizes)

    def fragmentation(self) -> Fragmentation:
        """Return which blocks and modules keep half-empty segments when most is reserved."""
        return fragmentation(self.trace)

    # -------------------------------------------------------------------------------------------- output
    def save_snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write the allocator's history as a snapshot that pytorch.org/memory_viz opens.

        Raises:
            OutputError: The file cannot be written.
        """
        write_snapshot(self.trace, path)

    # Not inherited: IPython takes a class's own __repr__, which a dataclass has, before what its bases have.
    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Write what IPython shows as text, and a notebook keeps with the HTML: not the arrays of the trace."""
        printer.text(str(self))

    @property
    def title(self) -> str:
        """What runs, on which card."""
        job = self.job
        program = job.command and ("Python code" if job.command.is_code else job.command.program)
        return f"{job.target or program or 'job'} on {job.device.name}"
