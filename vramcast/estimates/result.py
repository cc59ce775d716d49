"""`Estimate`: the three peaks of a job, their bound, and a breakdown of the bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from vramcast.core.brief import brief
from vramcast.core.errors import UsageError
from vramcast.core.text import shorten
from vramcast.core.units import gib
from vramcast.estimates.bounds.learned import LearnedBound
from vramcast.estimates.bounds.parts import MarginPart, part_of_another_run
from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.communicators import Communicator, context_of_process, sizes_of
from vramcast.estimates.growth import Growth
from vramcast.estimates.phases import TrainingCourse, course_of
from vramcast.estimates.runs.other_plans import OtherPlans
from vramcast.estimates.timeline import Timeline, timeline_of
from vramcast.estimates.verdict import Need, Verdict, doubts, verdict_of
from vramcast.estimates.view import Viewable
from vramcast.hardware.cards import card_bytes, device
from vramcast.hardware.context import Context
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.jobs.adapters import ModelAdapters
from vramcast.jobs.job import Job
from vramcast.jobs.targets import as_typed
from vramcast.learner import sum_quantile
from vramcast.learner.conformal import models_needed
from vramcast.simulator import curves
from vramcast.simulator.fragmentation import Fragmentation, fragmentation
from vramcast.simulator.settings import Settings
from vramcast.simulator.what_if import Case, what_if
from vramcast.tracer.format.ledger import CallHandling
from vramcast.tracer.format.nccl_calls import calls_in
from vramcast.tracer.format.rank_facts import (
    HeldParameters,
    ProcessPeak,
    RankPeaks,
    beside_bytes,
    processes_of,
    ranks_of,
    sharding_of,
    world_size_of,
)
from vramcast.tracer.format.serving import EngineAccounts, serving_of
from vramcast.tracer.format.snapshot import write_snapshot
from vramcast.tracer.format.trace import Category, Phase, Trace, step_number
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


@brief
@dataclass(frozen=True, slots=True)
class CardSpeed:
    """The effect of the card's speed on the peaks.

    A block shared by several streams, or a tensor of a collective, returns to the allocator once an event has completed: at
    once on an infinitely fast card, and only after the host has waited for it on an infinitely slow one. The estimate uses the
    fast end, which logged runs support. A second run gives the slow end, which the bound covers (docs/multi-gpu.md, "Streams
    and time").

    Attributes:
        decides: Whether the speed changed anything; if not, both ends are equal.
        fast: Peaks on an infinitely fast card, in bytes: those of the estimate.
        slow: Peaks on an infinitely slow card, in bytes; None if the job was not run on one.
    """

    decides: bool
    fast: Peaks
    slow: Peaks | None


class Maker(Protocol):
    """The part of an `Estimator` that an estimate keeps, to make further estimates the same way."""

    @property
    def level(self) -> float | None:
        """See `Estimator`."""

    @property
    def artifact(self) -> str | os.PathLike[str] | None:
        """See `Estimator`."""

    def estimate_job(self, job: Job, options: RunOptions = AS_USUAL) -> Estimate:
        """Estimate another job."""

    def apply_artifact(self, estimate: Estimate) -> Estimate:
        """Return the estimate with the bound of the artifact in use."""

    def changed(self, **changes: Any) -> Maker:
        """Return a copy with other settings."""


@dataclass(frozen=True, slots=True, repr=False)
class Estimate(Viewable):
    """The GPU memory of one job on one card: three peaks, a bound, and every event behind them.

    All sizes are integer bytes. `vramcast.estimate` and `Estimator` return it. The examples use `est` from the example of
    `vramcast.estimate`.

    Attributes:
        job: The job: its model or command, batch, training settings and card.
        trace: Every allocator event of the job: one row per request or free, with the address that answered it.
        allocated: Peak of live blocks, in bytes; the counterpart of `torch.cuda.max_memory_allocated()`.
        reserved: Peak of the allocator's segments, in bytes; the counterpart of `torch.cuda.max_memory_reserved()`.
        process: Peak of the whole process, in bytes, as nvidia-smi reports it: reserved + CUDA context + libraries.
        min_feasible: Smallest card, in bytes, on which the job runs when the allocator releases memory and retries; None if
            unknown.
        without_searches: Smallest card, in bytes, without the trial workspaces with which cudnn.benchmark searches for plans;
            None if there are none. A trial that does not fit is skipped, so a job does not fit only on a smaller card.
        out_of_memory: torch's out-of-memory message if the job does not fit on its card, else None. The peaks are then those
            of an unlimited card.
        context: Memory of the process outside PyTorch's segments (CUDA context, libraries), in bytes, with its plausible range
            and source.
        tracer: Name of the tracer that observed the job: nullgpu, fake or cpu.
        torch: Version of the torch that ran the job, for example `2.11.0+cu130`.
        cuda_major: CUDA's major version on the card's machine.
        steps: Number of observed training steps, or of forward passes in mode infer.
        stack: Known versions of torch, CUDA and cuDNN on the card's machine, with their source.
        alloc_conf: Allocator settings in force (PYTORCH_CUDA_ALLOC_CONF), with their source.
        libraries: Names of the used libraries that take memory of their own: cublas, cudnn, nccl.
        unknown: Names of the calls that were rejected or answered with an assumption. Each of them widens the bound.
        noop_calls: Names of the calls that were skipped because they return nothing.
        host_reads: Number of times the host read a value from the card that was never computed.
        max_shape_reserved_bytes: Reserved peak in bytes with the largest possible shape wherever a shape depends on values;
            None if no shape does. Every bound covers it.
        slow_card_peaks: Peaks on an infinitely slow card, in bytes; None if the job was not traced for one. Every bound
            covers them.
        unbounded_calls: Names of the calls without a largest shape, or without a trace of it. No bound covers them.
        warnings: Remarks for the reader, one sentence each.
        seconds: Time spent on the estimate, in seconds, by part: start, trace, simulate, total, and learn if an artifact was
            applied.
        max_resident_bytes: Peak of main memory (resident set) of the processes that traced the job, in bytes.
        grown_bytes: The same without what the job's own process began with: Python, torch and vramcast; None: unknown.
        traits: The job's class, by trait, which selects its calibration; see `vramcast.learner.traits`.
        cudnn: Version of the cuDNN that chose the workspaces of convolutions; "" if none did.
        larger_plans: Peaks with the plans of a second cuDNN, at least as large, which every bound covers; None unless the cuDNN
            of the job's stack is too old to be queried.
        without_workspaces: Reserved peak in bytes without the workspaces of convolutions; None if there are none.
        other_rank: Number and trace of the rank that reserves least, for a job of several ranks; else None. The estimate
            itself is for the rank that reserves most.
        growth: Memory that a loop of the job keeps from step to step, and the step that fills the card; None if every loop
            settles.
        adapted: The adapters of LoRA or QLoRA, with their number of trained parameters; None: the job has none.
        estimator: The `Estimator` that made the estimate; comparisons use it for their other estimates.
        bound: Source of `quantile` and `upper_bound`. With a learned artifact, `quantile(0.5)` is the corrected process peak;
            the peaks above stay uncorrected.

    Example:
        >>> est.allocated <= est.reserved <= est.process <= est.upper_bound
        True
        >>> est.peak_at["phase"]
        'optimizer'
        >>> est.breakdown["parameters"]  # 4,239,370 parameters of 4 bytes, rounded up to blocks
        16957952
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
    without_searches: int | None = None
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
    grown_bytes: int | None = None
    traits: Mapping[str, str] = field(default_factory=dict)
    cudnn: str = ""
    larger_plans: OtherPlans | None = None
    without_workspaces: int | None = None
    other_rank: tuple[int, Trace] | None = field(default=None, repr=False)
    growth: Growth | None = None
    adapted: ModelAdapters | None = None

    # -------------------------------------------------------------------------------------------- observed facts
    @property
    def inputs_text(self) -> str:
        """The inputs in words, with the sizes that were taken by default: `8 x 1024 tokens (default batch and length)`.

        Empty if the batch was given tensor by tensor, and for a command.
        """
        return self.job.sizes.words if self.job.sizes is not None else ""

    @property
    def has_card(self) -> bool:
        """True if a card was named; otherwise the default card's rules apply, and no view gives a verdict."""
        return self.job.has_card

    @property
    def course(self) -> TrainingCourse:
        """The observed part of a training command, with the peaks of each phase; empty for a model."""
        return course_of(self.trace)

    @property
    def serving(self) -> EngineAccounts | None:
        """The accounts of a serving engine; None if the job serves nothing."""
        return serving_of(self.trace)

    @property
    def world_size(self) -> int:
        """Number of ranks of the job."""
        return world_size_of(self.trace)

    @property
    def ranks(self) -> tuple[RankPeaks, ...]:
        """The traced ranks, each with its peaks in bytes; empty for a single rank. The estimate is for the fullest."""
        return ranks_of(self.trace)

    @property
    def fullest_rank(self) -> int:
        """Number of the rank that the estimate is for."""
        return max(self.ranks, key=lambda one: one.reserved).number if self.ranks else 0

    @property
    def processes(self) -> tuple[ProcessPeak, ...]:
        """The processes that used the card, the traced one first; empty for a single process.

        `process` covers all processes that were alive at the same time.
        """
        return processes_of(self.trace)

    @property
    def sharding(self) -> tuple[HeldParameters, ...]:
        """The shard of each module's parameters on the estimated rank; empty for a single rank."""
        return sharding_of(self.trace)

    @property
    def communicators(self) -> tuple[Communicator, ...]:
        """The process's NCCL communicators, each with the bytes of the card that it is assumed to hold."""
        return sizes_of(calls_in(self.trace.ledger), self.job.device, self.stack.torch)

    @property
    def streams(self) -> CardSpeed:
        """The effect of the card's speed on the peaks, through blocks shared by several streams."""
        fast = Peaks(self.allocated, self.reserved)
        decides = any(entry.kind is CallHandling.SPEED for entry in self.trace.ledger)
        return CardSpeed(decides, fast, self.slow_card_peaks if decides else fast)

    # -------------------------------------------------------------------------------------------- bound
    @property
    def level(self) -> float:
        """Confidence level of `upper_bound`, in (0, 1): the given one, or else the one that the job's class supports."""
        level = self.estimator.level
        return self.bound.support.default_level if level is None else level

    def quantile(self, level: float) -> int:
        """Return the bytes that the process peak stays below with probability `level`.

        The quantile comes from the artifact in use (`vramcast.estimates.bounds.learned`), or else from the residuals of public
        runs (`vramcast.estimates.bounds.public`).

        Args:
            level: Probability, in (0, 1).

        Returns:
            Bytes of the card. Below 0.5, the result may be less than the point estimate `process`.

        Raises:
            UsageError: `level` is not in (0, 1), or too few measured models are like the job for it. `bound_at` then has an
                empirical bound.

        Example:
            >>> est.quantile(0.5) <= est.quantile(0.7) <= est.quantile(0.8)
            True
        """
        support = self.bound.support
        if 0.5 < level < 1 and not support.supports(level):
            raise UsageError(
                f"quantile({level:g}) takes {models_needed(level)} measured models like the job, and the {support.models} here "
                f"support {support.level:.3f}: ask for that, or for bound_at({level:g}), which is empirical."
            )
        return self._quantile(level, self.job.device, self.context)

    def _quantile(self, level: float, card: Device, context: Context) -> int:
        return round(sum_quantile.at(self._upper(card, context), level))

    def _upper(self, card: Device, context: Context) -> sum_quantile.Array:
        """Return the quantiles of the process peak on a card, at `sum_quantile.LEVELS`."""
        found = self.bound.upper(card, context)
        above_bytes = max(self._other_runs().values(), default=0)
        if above_bytes <= self.reserved:
            return found
        other = PublicBound(above_bytes, self.libraries, self.unknown).upper(card, context)
        return np.concatenate([found[:1], np.maximum(found, other)[1:]])  # the median is that of the run itself

    def _other_runs(self) -> dict[str, int]:
        """Return the reserved peaks of the job's other runs, by what differs in them."""
        slow, growth = self.slow_card_peaks, self.growth
        found = {
            "values": self.max_shape_reserved_bytes,
            "speed": slow.reserved if slow is not None else None,
            "growth": growth.reserved_at_end if growth is not None else None,
        }
        return {kind: size for kind, size in found.items() if size is not None}

    @property
    def upper_bound(self) -> int:
        """Bound of the process peak at `level`, in bytes; at least `process`."""
        return self.bound_at(self.level)

    def bound_at(self, level: float) -> int:
        """Return the upper bound of the process peak at any level, which is empirical where too few models are like the job.

        Args:
            level: Level of the bound, in (0, 1).

        Returns:
            Bytes, at least `process`.

        Raises:
            UsageError: `level` is not in (0, 1).

        Example:
            >>> est.process <= est.bound_at(0.9) <= est.bound_at(0.99)
            True
        """
        return max(self._quantile(level, self.job.device, self.context), self.process)

    def margin(self, level: float | None = None) -> tuple[MarginPart, ...]:
        """Split the margin between the point estimate and the bound into parts.

        Args:
            level: Level of the bound, in (0, 1); default: the estimate's own.

        Returns:
            The parts, largest first. Each has its size in bytes, its cause, a remedy, and the bytes by which the bound would
            shrink with that remedy.

        Raises:
            UsageError: `level` is not in (0, 1).

        Example:
            >>> est.margin()[0].part
            'context'
        """
        level = self.level if level is None else level
        found = self.bound.margin(level, self.job.device, self.context)
        rest = self._quantile(level, self.job.device, self.context) - self.bound.quantile(level, self.job.device, self.context)
        if not rest:
            return tuple(found)
        others = self._other_runs()
        return (*found, part_of_another_run(max(others, key=lambda kind: others[kind]), rest))

    @property
    def card_bytes(self) -> int:
        """Size of the job's card, in bytes."""
        return self.job.total_bytes

    @property
    def card(self) -> Device:
        """The job's card, with the memory available to the job."""
        return self.job.device.with_memory(self.job.total_bytes)

    def need(self, on: str | Device | None = None, *, level: float | None = None) -> Need:
        """Return the memory that the job needs on a card.

        Args:
            on: Name of a card or a `Device`; default: the job's own card. For another card, the same reserved peak is combined
                with that card's size and context. To get its own kernel and workspace choices, trace the job for it:
                `estimate(..., device=on)`.
            level: Level of the bound, in (0, 1); default: the estimate's own.

        Returns:
            The card, the point estimate and the bound in bytes, and whether the job runs out of memory.

        Raises:
            UsageError: The card is unknown, or `level` is not in (0, 1).

        Example:
            >>> need = est.need("rtx-4090")
            >>> need.point_bytes <= need.bound_bytes <= need.card.total_bytes
            True
        """
        own, (card, context) = self.card, self._place(on)
        point_bytes = self.process if on is None else self.reserved + context.bytes
        bound_bytes = max(self._quantile(self.level if level is None else level, card, context), point_bytes)
        if self.without_searches is not None:  # any plan that was tried may be chosen on a card: the bound covers the trials
            point_bytes = min(point_bytes, self.without_searches - self.context.bytes + context.bytes)
        was_full = self.out_of_memory is not None and card.key == own.key and card.total_bytes <= own.total_bytes
        smallest = 0 if self.min_feasible is None else self.min_feasible - self.context.bytes + context.bytes
        least_bytes = smallest if card.total_bytes < smallest < point_bytes else point_bytes
        return Need(card, point_bytes, bound_bytes, was_full or point_bytes > card.total_bytes, least_bytes)

    def _place(self, on: str | Device | None) -> tuple[Device, Context]:
        """Return a card, and the memory of the process outside the segments there."""
        if on is None:
            return self.card, self.context
        card = on if isinstance(on, Device) else device(on)
        outside_bytes = self.context.outside_bytes
        context = context_of_process(card, self.cuda_major, self.stack.torch, self.libraries, self.trace, outside_bytes)
        return card, self.bound.context_on(card, context)

    def with_context(self, context: Context) -> Estimate:
        """Return the estimate with another context, by which the peaks of the process differ.

        Args:
            context: Memory of the process outside the segments.

        Returns:
            The same job, with the same bound.
        """
        more_bytes = context.bytes - self.context.bytes
        smallest, settled = (None if size is None else size + more_bytes for size in (self.min_feasible, self.without_searches))
        return replace(
            self, context=context, process=self.process + more_bytes, min_feasible=smallest, without_searches=settled
        )

    def probability_fits(self, on: str | Device | None = None) -> float | None:
        """Return the share of jobs like this one that fit on a card, from the quantiles of the bound.

        Args:
            on: Name of a card or a `Device`; default: the job's own card. See `need`.

        Returns:
            A share in [0, 1], which never falls when the card grows: at a card as large as the bound at a level, that level.
            None if something that matters is unknown.

        Raises:
            UsageError: The card is unknown.

        Example:
            >>> est.probability_fits("rtx-4090") >= est.probability_fits("rtx-3060")
            True
        """
        if self.doubts or self.serving is not None:
            return None
        card, context = self._place(on)
        if self.growth is not None and self.growth.fills(card.total_bytes):
            return 0.0
        return self.bound.share_up_to(self._upper(card, context), card, context)

    def verdict_on(self, on: str | Device | None = None, *, level: float | None = None) -> Verdict:
        """Decide whether the job fits on a card, and why.

        Args:
            on: Name of a card or a `Device`; default: the job's own card. See `need`.
            level: Level of the bound, in (0, 1); default: the estimate's own.

        Returns:
            The verdict: *fits*, *does not fit* or *uncertain*, with its reason.

        Raises:
            UsageError: The card is unknown, none was named, or `level` is not in (0, 1).

        Example:
            >>> est.verdict_on("rtx-4090").value
            'fits'
        """
        if on is None and not self.has_card:
            raise UsageError(
                "The estimate has no verdict, because no card was named: ask for one, est.fits('rtx4090'), or estimate "
                "for one, device='rtx4090'."
            )
        return verdict_of(self, self.need(on, level=level))

    @property
    def verdict(self) -> Verdict:
        """Verdict on the job's own card, with its reason."""
        return self.verdict_on()

    def fits(self, on: str | Device | None = None, *, level: float | None = None) -> bool:
        """Return whether the job fits on a card: the bound is at most its size, and nothing that matters is unknown.

        Args:
            on: Name of a card or a `Device`; default: the job's own card. See `need`.
            level: Level of the bound, in (0, 1); default: the estimate's own.

        Returns:
            True if the verdict is *fits*, False if it is *does not fit* or *uncertain*.

        Raises:
            UsageError: The card is unknown, none was named, or `level` is not in (0, 1).

        Example:
            >>> est.fits(), est.fits("rtx-4090")
            (True, True)
        """
        return self.verdict_on(on, level=level).value == "fits"

    @property
    def doubts(self) -> tuple[str, ...]:
        """The unknowns that matter, one phrase each. If there are any, no bound holds for the whole job."""
        return tuple(doubts(self))

    # -------------------------------------------------------------------------------------------- breakdown
    @property
    def breakdown(self) -> dict[str, int]:
        """Bytes by category at the peak of live blocks, plus fragmentation and context; they sum to `process`."""
        _, row = self.trace.peak_live()
        by_category = self.trace.by_category_at(row) if row >= 0 else {}
        parts = {name: by_category.get(category, 0) for category, name in _NAMES.items()}
        if Category.KV_CACHE in self.trace.category:
            parts["kv_cache"] = by_category.get(Category.KV_CACHE, 0)
        parts["temporaries"] += by_category.get(Category.UNKNOWN, 0)
        parts["fragmentation"] = self.process - self.context.bytes - sum(parts.values())
        others = beside_bytes(self.trace)
        parts["context"] = self.context.bytes - others
        if others:
            parts["other_processes"] = others
        return parts

    @property
    def workspace_bytes(self) -> int:
        """Peak of library workspaces, in bytes."""
        return int(curves.live_bytes(self.trace, Category.WORKSPACE).max(initial=0))

    @property
    def timeline(self) -> Timeline:
        """A list of (step, phase, live bytes, reserved bytes), one tuple for each event that changed one of the sizes.

        Steps count from 1; 0 is before the first.
        """
        return timeline_of(self.trace)

    @property
    def by_module(self) -> dict[str, int]:
        """Live bytes at the peak by requesting module, largest first; the key "" stands for code outside all modules."""
        _, row = self.trace.peak_live()
        return curves.bytes_by_module(self.trace, row)

    @property
    def peak_at(self) -> dict[str, Any]:
        """Position of the peak of live blocks: step (from 1; 0 before the first), phase, module and op; None where unknown."""
        _, row = self.trace.peak_live()
        if row < 0:
            return {"step": None, "phase": None, "module": None, "op": None}
        operator = self.trace.operator_at(row)
        return {
            "step": step_number(int(self.trace.step[row])),
            "phase": Phase(self.trace.phase[row]).name.lower(),
            "module": operator.module or None,
            "op": operator.name or None,
        }

    # -------------------------------------------------------------------------------------------- other settings
    def what_if(self, settings: Iterable[str] = ("",), cards: Iterable[int | str | None] = (None,)) -> list[Case]:
        """Replay the job's requests under other allocator settings and on other cards, without running the job again.

        Args:
            settings: Values of PYTORCH_CUDA_ALLOC_CONF; "" means torch's defaults.
            cards: Keys of `vramcast.devices.DEVICES`, sizes (bytes or `"12GiB"`), or None for an unlimited card.

        Returns:
            A case for each setting on each card, in that order, with peaks in bytes; `vramcast.case_table` prints them.

        Raises:
            UsageError: A setting or a card is unknown.

        Example:
            >>> cases = est.what_if(["", "expandable_segments:True"], ["24GiB"])
            >>> [(case.settings, case.out_of_memory) for case in cases]
            [('default', None), ('expandable_segments:True', None)]
        """
        sizes = [card_bytes(card) if isinstance(card, str) else card for card in cards]
        return what_if(self.trace, [Settings.parse(text) for text in settings], sizes)

    def fragmentation(self) -> Fragmentation:
        """Find the blocks and modules that keep segments half empty when the reserved peak is reached.

        Returns:
            Pinned bytes by segment, block and module.

        Example:
            >>> found = est.fragmentation()
            >>> found.pinned_bytes <= found.reserved_bytes
            True
        """
        return fragmentation(self.trace)

    # -------------------------------------------------------------------------------------------- output
    def save_snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write the allocator's history as a snapshot for pytorch.org/memory_viz.

        Args:
            path: The file to write, a pickle.

        Raises:
            OutputError: The file cannot be written.

        Example:
            >>> est.save_snapshot("snapshot.pickle")
        """
        write_snapshot(self.trace, path)

    def __repr__(self) -> str:
        need = self.need()
        sizes = f"{gib(need.point_bytes)}, at most {gib(need.bound_bytes)}, of {gib(need.card.total_bytes)}"
        verdict = self.verdict.value if self.has_card else "no card was named"
        return f"<Estimate {shorten(need.card.key, 20)}: {sizes}: {verdict}>"

    # Not inherited: IPython prefers a class's own __repr__ to any method of its bases.
    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the text form in IPython, where it is not cut."""
        printer.text(str(self))

    @property
    def title(self) -> str:
        """A title: the program and the card."""
        job = self.job
        program = job.command and ("Python code" if job.command.is_code else job.command.program)
        return f"{as_typed(job.target) or program or 'job'} on {job.device.name}"
