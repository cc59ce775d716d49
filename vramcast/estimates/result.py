"""The answer: `Estimate`, with its three peaks, its bound, and where the bytes are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vramcast import report
from vramcast.core.units import gib
from vramcast.estimates.bounds import Bound
from vramcast.estimates.bounds.parts import Owed, owed_to_another_run
from vramcast.estimates.bounds.public import PublicBound
from vramcast.estimates.card_speed import CardSpeed, End
from vramcast.estimates.communicators import Communicator, communicators, context_of_process
from vramcast.estimates.phases import Course, course_of
from vramcast.hardware.context import Context
from vramcast.hardware.devices import DEVICES, Device, card_bytes, device
from vramcast.hardware.stack import Stack
from vramcast.jobs.job import Job
from vramcast.simulator import curves
from vramcast.simulator.fragmentation import Fragmentation, fragmentation
from vramcast.simulator.settings import Settings
from vramcast.simulator.what_if import Case, what_if
from vramcast.tracer.format.ledger import Entered
from vramcast.tracer.format.rank_peaks import RankPeaks, ranks_of, world_size_of
from vramcast.tracer.format.sharding import Held, sharding_of
from vramcast.tracer.format.sharding import table as sharding_table
from vramcast.tracer.format.snapshot import write_snapshot
from vramcast.tracer.format.trace import Category, Phase, Trace
from vramcast.tracer.protocol.alloc_conf import AllocConf
from vramcast.views import draw_text, save

if TYPE_CHECKING:
    from vramcast.estimates.advice import Advice
    from vramcast.estimates.estimator import Estimator

SCHEMA = 1
_QUANTILES = (0.5, 0.9, 0.95, 0.99)
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
class Estimate:
    """What a job takes from a card. All sizes are integer bytes.

    Attributes:
        allocated: Peak of live blocks, as `torch.cuda.max_memory_allocated()` would say.
        reserved: Peak of the allocator's segments, as `torch.cuda.max_memory_reserved()` would say.
        process: What the job takes from the card, as nvidia-smi would say: reserved + CUDA context + libraries.
        min_feasible: The smallest card on which the job runs, the allocator releasing and retrying; None: unknown.
        out_of_memory: torch's own message when the job does not fit on the card it was asked for; the peaks are then
            those of an unlimited card.
        stack: torch, CUDA and cuDNN of the card's machine, as far as they are known, and who says so.
        alloc_conf: The allocator's settings in force, and who chose them.
        libraries: Which libraries the job used that take memory of their own.
        unknown: Calls which were refused or answered with an assumption, by name: each widens the bound.
        ceiling: The reserved peak where every shape that depends on something large is the largest possible; None: there is no
            such shape. Every bound covers it.
        slow: The peaks on an infinitely slow card, where the job was run on it too; None: it was not. Every bound covers them.
        open_calls: Calls, by name, of which no largest shape exists, or none could be traced: no bound covers them.
        warnings: What the reader should know.
        traits: The job's class, which decides how far first principles may lie off; see `vramcast.learner.traits`.
        beside: Of a job of several ranks another one than the fullest, which reserves least: its number and its trace.
        made_by: How it was made: estimates of other jobs which are to be compared with it are made by the same one.
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
    made_by: Estimator
    bound: Bound
    tracer: str
    torch: str
    cuda_major: int
    steps: int
    stack: Stack = field(default_factory=Stack)
    alloc_conf: AllocConf = field(default_factory=AllocConf)
    out_of_memory: str | None = None
    libraries: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()
    noops: tuple[str, ...] = ()
    host_reads: int = 0
    ceiling: int | None = None
    slow: End | None = None
    open_calls: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    max_resident_bytes: int = 0
    traits: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[int, Trace] | None = field(default=None, repr=False)

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
    def sharding(self) -> tuple[Held, ...]:
        """What the rank which the estimate is of holds of each module's parameters; of a job of one rank nothing."""
        return sharding_of(self.trace)

    @property
    def communicators(self) -> tuple[Communicator, ...]:
        """NCCL's communicators of the process, with what each is taken to hold of the card."""
        return communicators(self.trace, self.job.device, self.stack.torch)

    @property
    def streams(self) -> CardSpeed:
        """What the card's speed can change of the peaks, through blocks which several streams use."""
        fast = End(self.allocated, self.reserved)
        decides = any(entry.kind is Entered.SPEED for entry in self.trace.ledger)
        return CardSpeed(decides, fast, self.slow if decides else fast)

    # -------------------------------------------------------------------------------------------- bound
    @property
    def level(self) -> float:
        """Of `upper_bound`."""
        return self.made_by.level

    def quantile(self, level: float) -> int:
        """Return the bytes of the card which the job stays below with probability `level`.

        By the artifact in use (`vramcast.estimates.bounds.learned`), else by the residuals of public runs
        (`vramcast.estimates.bounds.public`).
        """
        return self._quantile(level, self.job.device, self.context)

    def _quantile(self, level: float, card: Device, context: Context) -> int:
        found = self.bound.quantile(level, card, context)
        others = [self.ceiling, self.slow.reserved if self.slow is not None else None]
        above_bytes = max((size for size in others if size is not None), default=0)
        if above_bytes <= self.reserved or level <= 0.5:
            return found
        return max(found, PublicBound(above_bytes, self.libraries, self.unknown).quantile(level, card, context))

    @property
    def upper_bound(self) -> int:
        """The process peak's bound at `level`."""
        return max(self.quantile(self.level), self.process)

    def explain(self, level: float | None = None) -> tuple[Owed, ...]:
        """Return what the bound's margin above the point consists of, largest part first, and what would make it smaller.

        Args:
            level: Of the bound; default: the estimate's own.
        """
        level = self.level if level is None else level
        found = self.bound.explain(level, self.job.device, self.context)
        rest = self.quantile(level) - self.bound.quantile(level, self.job.device, self.context)
        return (*found, owed_to_another_run(rest, by_values=self.ceiling is not None)) if rest else tuple(found)

    @property
    def card_bytes(self) -> int:
        """The size of the card which the job was estimated for."""
        return self.job.total_bytes

    def fits(self, on: str | Device | None = None, *, level: float | None = None) -> bool:
        """Return whether the job fits on a card at `level` (default: the estimate's own); never, where no bound holds.

        Args:
            on: A device; default: the one the job was traced for. For another one the same reserved peak is held against
                its size and context: trace for that device (`estimate(..., device=on)`) to have its own kernel and
                workspace choices.
            level: In (0, 1).
        """
        card = self.job.device.with_memory(self.job.total_bytes) if on is None else on if isinstance(on, Device) else device(on)
        if card.key == self.job.device.key and self.out_of_memory is not None and card.total_bytes <= self.job.total_bytes:
            return False
        if self.open_calls:
            return False
        context = context_of_process(
            card, self.cuda_major, self.stack.torch, self.libraries, self.trace, self.context.outside_bytes
        )
        chosen = self.level if level is None else level
        needed = self._quantile(chosen, card, context)
        return max(needed, self.reserved + context.bytes) <= card.total_bytes

    def point_fits(self) -> bool:
        """Return whether the point estimate fits on the job's own card."""
        return self.out_of_memory is None and self.process <= self.job.total_bytes

    # -------------------------------------------------------------------------------------------- where the bytes are
    @property
    def breakdown(self) -> dict[str, int]:
        """Bytes by category at the peak of live blocks; with fragmentation and context they sum to `process`."""
        _, row = self.trace.peak_live()
        by_category = self.trace.by_category_at(row) if row >= 0 else {}
        parts = {name: by_category.get(category, 0) for category, name in _NAMES.items()}
        parts["temporaries"] += by_category.get(Category.UNKNOWN, 0)
        parts["fragmentation"] = self.process - self.context.bytes - sum(parts.values())
        parts["context"] = self.context.bytes
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
            cards: Keys of `vramcast.hardware.devices.DEVICES`, sizes (`12 << 30`, `"12GiB"`), or None: an unlimited card.
        Returns:
            A case for each setting on each card, in that order; `vramcast.simulator.what_if.table` prints them.
        Raises:
            UsageError: A setting or a card is not known.
        """
        sizes = [card_bytes(card) if isinstance(card, str) else card for card in cards]
        return what_if(self.trace, [Settings.parse(text) for text in settings], sizes)

    def fragmentation(self) -> Fragmentation:
        """Return which blocks and modules keep half-empty segments when most is reserved."""
        return fragmentation(self.trace)

    # -------------------------------------------------------------------------------------------- output
    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as the JSON object of the contract ("schema": 1); unknown is None, never 0."""
        job, course = self.job, self.course
        return {
            "schema": SCHEMA,
            "target": job.target or (job.command.program if job.command else None),
            "device": job.device.key,
            "memory_bytes": job.total_bytes,
            "tracer": self.tracer,
            "torch": self.torch,
            "stack": self.stack.to_dict(),
            "alloc_conf": {"value": self.alloc_conf.value, "source": self.alloc_conf.source},
            "precision": job.training.precision if job.command is None else None,
            "optimizer": (job.training.optimizer if isinstance(job.training.optimizer, str) else "callable")
            if job.command is None and job.training.mode == "train"
            else None,
            "steps": self.steps,
            "peaks": {
                "allocated": self.allocated,
                "reserved": self.reserved,
                "process": self.process,
                "min_feasible": self.min_feasible,
            },
            "quantiles": {str(q): self.quantile(q) for q in _QUANTILES},
            "upper_bound": {
                "level": self.level,
                "bytes": self.upper_bound,
                **self._method(),
                "covers": "all" if course.is_whole else "what was reached",
                "margin": [owed.to_dict() for owed in self.explain()],
            },
            "context_bytes": self.context.bytes,
            "workspace_bytes": self.workspace_bytes,
            "breakdown": self.breakdown,
            "peak_at": self.peak_at,
            "fits": {key: self.fits(key) for key in DEVICES},
            "out_of_memory": self.out_of_memory,
            "parallel": str(job.parallel) if job.parallel is not None else None,
            "world_size": self.world_size,
            "ranks": [{**one.to_dict(), "fits": self.context.bytes + one.reserved <= job.total_bytes} for one in self.ranks],
            "sharding": [held.to_dict() for held in self.sharding],
            "communicators": [one.to_dict() for one in self.communicators],
            "streams": self.streams.to_dict(),
            "phases": [phase.to_dict() for phase in course.phases],
            "not_reached": list(course.not_reached),
            "ended": course.ended or None,
            "seconds": {"simulate": None, "learn": None, **self.seconds},
            "artifact": self.bound.artifact,
            "out_of_distribution": self.bound.is_out_of_distribution,
            "unknown_calls": list(self.unknown),
            "open_calls": list(self.open_calls),
            "traits": dict(self.traits),
            "ceiling_bytes": self.ceiling,
            "noop_calls": list(self.noops),
            "host_reads": self.host_reads,
            "host_peak_bytes": self.max_resident_bytes,
            "warnings": list(self.warnings),
        }

    def _method(self) -> dict[str, Any]:
        """Return how the bound was made, and how many runs or models stand behind it."""
        method, n = self.bound.method(self.level, self.job.device)
        return {"method": method, "n_calibration": n}

    def to_json(self) -> str:
        """Return `to_dict` as one line of JSON."""
        return json.dumps(self.to_dict())

    def save_snapshot(self, path: str | Path) -> None:
        """Write the allocator's history as a snapshot which pytorch.org/memory_viz opens."""
        write_snapshot(self.trace, path)

    def plot(self, path: str | Path) -> None:
        """Draw the timeline with the card's line to `path`: .png (needs matplotlib), .html or .txt; see `vramcast.views`."""
        save(self.trace, path, **self._view)

    def plot_text(self) -> str:
        """Return what `plot` writes to a .txt."""
        return draw_text(self.trace, **self._view)

    def save_report(self, path: str | Path, *, advice: Advice | None = None) -> None:
        """Write the report to `path`, one HTML page: the answer, the timeline, who holds the bytes, what was assumed.

        Args:
            path: Ends in .html.
            advice: What `vramcast.advise` gave for this estimate, for its table.
        Raises:
            UsageError: Another ending.
            OutputError: The file cannot be written.
        """
        report.save(self, path, advice=advice)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the answer, the bar of the card, the margin and the timeline."""
        return report.draw_fragment(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Write what IPython shows as text, and a notebook keeps beside the HTML: not the arrays of the trace."""
        printer.text(str(self))

    @property
    def title(self) -> str:
        """What runs, on which card."""
        job = self.job
        program = job.command and ("Python code" if job.command.is_code else job.command.program)
        return f"{job.target or program or 'job'} on {job.device.name}"

    @property
    def _view(self) -> dict[str, Any]:
        """What a view needs to know besides the trace."""
        return {"card_bytes": self.card_bytes, "title": self.title, "beside": self.beside}

    @property
    def verdict(self) -> Literal["fits", "uncertain", "does not fit"]:
        """Whether the upper bound fits on the job's card, the point estimate alone, or not even that."""
        return "fits" if self.fits() else "uncertain" if self.point_fits() else "does not fit"

    def __str__(self) -> str:
        card, course = self.job.device, self.course
        claim = f"at level {self.level:g}" + ("" if course.is_whole else ", of what was reached")
        smallest = "unknown" if self.min_feasible is None else gib(self.min_feasible)
        lines = [
            f"{'process peak':<18}{gib(self.process):>12}   reserved {gib(self.reserved)} + context {gib(self.context.bytes)}"
            + (" (assumed)" if self.context.assumed else ""),
            f"{'upper bound':<18}{gib(self.upper_bound):>12}   {claim}",
            *(f"{'  for ' + owed.part:<18}{gib(owed.size_bytes):>12}   {owed}" for owed in self.explain()),
            f"{'reserved':<18}{gib(self.reserved):>12}   torch.cuda.max_memory_reserved()",
            f"{'allocated':<18}{gib(self.allocated):>12}   torch.cuda.max_memory_allocated()",
            f"{'smallest card':<18}{smallest:>12}   on which the job runs",
            f"{'card':<18}{gib(self.job.total_bytes):>12}   {card.name}: {self.verdict}",
        ]
        if self.alloc_conf.value:
            lines.append(f"allocator         {self.alloc_conf.value}   by the {self.alloc_conf.source}")
        parts = ", ".join(f"{name.replace('_', ' ')} {gib(size)}" for name, size in self.breakdown.items() if size)
        at = self.peak_at
        lines.append(f"at the peak       {parts}")
        lines.append(
            f"peak in           {_step(at['step'])}, {at['phase']}, "
            f"{at['module'] or 'outside of modules'}, {at['op'] or 'no operator'}"
        )
        lines += [
            f"{phase.name:<18}{gib(phase.reserved or 0):>12}   reserved, {gib(phase.allocated or 0)} allocated"
            for phase in course.phases
            if phase.reached
        ]
        lines += [
            f"{f'rank {one.number} of {self.world_size}':<18}{gib(one.reserved):>12}   reserved, {gib(one.allocated)} allocated"
            for one in self.ranks
        ]
        if self.job.parallel is not None:
            lines.append(f"batch             of each rank; all {self.world_size} ranks make a step together")
        if self.sharding:
            lines += sharding_table(self.sharding)
        lines += [
            f"{'communicator':<18}{gib(one.bytes_assumed):>12}   assumed, {one}" for one in self.communicators if one.calls
        ]
        if self.slow is not None:
            slow = f"reserved, {gib(self.slow.allocated)} allocated: blocks of several streams come back as late as possible"
            lines.append(f"{'on a slow card':<18}{gib(self.slow.reserved):>12}   {slow}")
        if course.not_reached:
            lines.append(f"not reached       {'; '.join(course.not_reached)}")
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)


def _step(number: int | None) -> str:
    """Return a step's number for people, who count from 1 as `--steps` does."""
    return "no step" if number is None else "before step 1" if number < 0 else f"step {number + 1}"
