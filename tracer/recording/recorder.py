"""Recording of a PyTorch CUDA job from inside, as a `Trace`, without changing its allocations.

Three sources, joined at the end:
  - the allocator's own memory history: every request and free, in order, without stacks;
  - an observer of PyTorch's ranges (`watcher.py`, `profile.py`): the operator, the enclosing module's range, and the sequence
    number that ties an operator of the backward pass to the one of the forward pass;
  - global hooks on modules and optimizers, which record *where in the history* a forward or a step began and ended, and the
    addresses of parameters, gradients, optimizer state and inputs at that time.

A place in the history is a count of requests and frees (`_position`), taken from the allocator's statistics: it needs no
clock. Nothing here holds a reference to a tensor.
"""

from __future__ import annotations

import bisect
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from vramcast.core.releases import FREES_WORKSPACES
from vramcast.hardware.throughput import Roofline
from vramcast.tracer.format.operators import Operator, is_number, takes_workspace
from vramcast.tracer.format.snapshot import trace_from_snapshot
from vramcast.tracer.format.trace import CLASSES, Action, Category, Phase, Trace
from vramcast.tracer.hooks.installed_torch import is_before
from vramcast.tracer.hooks.tensors import leaves_of
from vramcast.tracer.hooks.torch_api import DisableTorchFunction, RecordFunctionFast
from vramcast.tracer.program.training_loop import Course, LoopLimits
from vramcast.tracer.program.training_loop_hooks import follow, open_ranges
from vramcast.tracer.protocol.run_options import LoopWatch
from vramcast.tracer.protocol.swap_rounds import SavedEvent
from vramcast.tracer.recording import accesses, owners
from vramcast.tracer.recording.allocator_history import Account
from vramcast.tracer.recording.emptied_cache import positions, with_empty_cache, with_searches
from vramcast.tracer.recording.job_profiles import JobProfiles
from vramcast.tracer.recording.kept_blocks import KeptBlocks
from vramcast.tracer.recording.profile import MODULE_RANGE, Contexts, Profile, ProfilePlace
from vramcast.tracer.recording.shards import Holdings
from vramcast.tracer.recording.watcher import Watcher

_DRAINED_EVENTS = 20_000  # arbitrary: requests and frees; Kineto's events for this many take about 200 MB


class _Modules:
    """Modules with their names; a module at the address of a dead one is a new one, because attempts build a model
    repeatedly.
    """

    def __init__(self) -> None:
        self._by_place: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}
        self.classes: dict[str, str] = {}  # of children of a Sequential, whose names are only numbers

    def __contains__(self, module: torch.nn.Module) -> bool:
        return self.name(module) is not None

    def name(self, module: torch.nn.Module) -> str | None:
        """Return a module's name; None if unknown."""
        known, name = self._by_place.get(id(module), (None, ""))
        return name if known is not None and known() is module else None

    def add(self, module: torch.nn.Module, name: str = "") -> None:
        """Add a module with its first name."""
        if module not in self:
            self._by_place[id(module)] = weakref.ref(module), name
            if is_number(name):
                self.classes[name] = type(module).__name__

    def alive(self) -> Iterator[torch.nn.Module]:
        """Yield those that still live."""
        yield from [one for module, _ in self._by_place.values() if (one := module()) is not None]


class Recorder:
    """Recorder of one job on one device: `start()`, run the job, `stop()`.

    Args:
        limits: Limits for following a training command; None: to the job's end.
        profile: Whether to record operators and modules; without them, the trace has only phases and categories.
        shapes: Whether to record the shapes of operators' arguments; needs the profile.
        roofline: The card's roofline, for READ and WRITE rows and the clock; needs the profile.
        step_over: Called when an optimizer has stepped.
        device_index: Index of the card in this machine.
        watch: The loop to watch for kept memory; None: none.

    Known limitations: modules compiled by torch.compile are one module; operators of threads other than autograd's keep
    their own names but no module; blocks that die on another stream count until the allocator completes their free.
    """

    def __init__(
        self, *, limits: LoopLimits | None = None, profile: bool = True, shapes: bool = False,
        roofline: Roofline | None = None, step_over: Callable[[], None] = lambda: None, device_index: int = 0,
        watch: LoopWatch | None = None,
    ) -> None:  # fmt: skip
        self._account = Account(device_index, stacks=watch is not None)
        self.course = Course(limits, self._position, watch, self._account.totals)
        self.course.without_optimizer = self._tag_gradients
        self._kept: KeptBlocks | None = None
        if watch is not None:
            self._kept = self.course.loops.watcher = KeptBlocks(self._account)
        self.holdings = Holdings()
        self._device = device_index
        self._step_over = step_over
        self._profile = profile
        self._roofline = roofline
        self._marks: list[tuple[int, str]] = []
        self._tags: list[tuple[int, Category, list[int]]] = []
        self._names, self._roots = _Modules(), _Modules()
        self._local = threading.local()
        self._main = threading.get_ident()
        self._handles: list[Any] = []
        self._profiles = JobProfiles()
        has_shapes = shapes or roofline is not None
        is_watched = Watcher.is_loaded() and not has_shapes
        self._profiled = Watcher() if is_watched else Profile(self._profiles, has_shapes=has_shapes)
        self._saved: list[tuple[int, SavedEvent]] = []
        self._tried: list[int] = []
        self._in_step = 0
        self._ends: dict[int, int] = {}  # for each training step, the place where its last optimizer ended
        self._drained_at = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled as a recorder of nothing: with torch 2.10, vLLM pickles what compiled code guards, as module hooks."""
        return Recorder, ()

    # -------------------------------------------------------------------------------------------- recording
    def start(self) -> None:
        """Begin recording; the allocator's history begins at the first use of CUDA."""
        self._account.begin_when_touched()
        self._watch()
        if self._profile:
            self._handles += self._profiles.replaced()
            self._profiled.start()

    def _watch(self) -> None:
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),  # also when the forward pass raises
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
            *follow(self.course),
        ]

    def _drain(self) -> None:
        """Take the records so far from PyTorch, if no range is open."""
        if not self._profile or self._roofline is not None or self._in_step or open_ranges():
            return
        if self._position() - self._drained_at < _DRAINED_EVENTS:
            return
        with self.course.ours():
            self._drained_at = self._position()
            self._profiled.drain()
            self._account.drain()

    def stop(
        self, *, header: dict[str, Any], workspace_sizes: Iterable[int] = (), workspaces: Iterable[int] = ()
    ) -> Trace:  # fmt: skip
        """End recording and return the trace.

        Args:
            header: Facts for the trace's header; the peaks counted by the allocator are added.
            workspace_sizes: Workspace sizes passed to libraries (from the null GPU's ledger).
            workspaces: Addresses of workspaces whose blocks may have another size.
        """
        snapshot = self._account.end()
        for handle in self._handles:
            handle.remove()
        if self._profile:
            self._profiled.stop()
        contexts = self._profiled.contexts()
        facts = {**header, "peaks": self._account.peaks(), "marks_empty_cache": True, CLASSES: self._names.classes}
        trace = trace_from_snapshot(snapshot, self._device, header=facts, earlier=self._account.earlier)
        trace = with_empty_cache(trace, self._account.emptied)
        handed = set(workspace_sizes), set(workspaces)
        trace = annotate(trace, self._marks, self._step_ends(), self._tags, contexts, *handed)
        trace = with_searches(trace, self._tried)
        if self._roofline is None or not isinstance(self._profiled, Profile):
            return trace
        rows = np.flatnonzero(_match(trace, contexts)[0] >= 0).tolist()
        return accesses.with_accesses(trace, *accesses.operators(self._profiled.roots), rows, self._roofline)

    def phases(self, trace: Trace) -> list[tuple[int, str]]:
        """Return (row, phase) where each phase of the job's course begins in its trace."""
        row_of = _rows_of(trace)
        return [(row_of(at), phase) for at, phase in self.course.spans]

    def loops(self, trace: Trace, *, is_whole: bool) -> dict[str, Any]:
        """Return the facts about the job's loops for a trace's header, as JSON.

        Args:
            trace: The job's trace.
            is_whole: Whether the job ran to its own end.
        """
        row_of = _rows_of(trace)
        kept = self._kept.facts(trace, row_of) if self._kept is not None else []
        return {"all": self.course.loops.facts(row_of, is_whole=is_whole), "kept": kept}

    def note_saved(self, event: SavedEvent) -> None:
        """Note a call of the hooks on saved tensors, where it happens."""
        self._saved.append((self._position(), event))

    def note_trial(self) -> None:
        """Note that cudnn.benchmark tries a plan for a convolution, where it happens."""
        self._tried.append(self._position())

    def note_kv_cache(self, tensors: Iterable[Any]) -> None:
        """Note the tensors of a KV cache."""
        self._tag(Category.KV_CACHE, tensors)

    def saved(self, trace: Trace) -> list[list[Any]]:
        """Return the calls of the hooks on saved tensors for a trace's header: place, kind, round, number, bytes, block.

        A place is a number of requests and frees, a block the number of its request: a replay of the trace keeps both.
        """
        allocs = np.flatnonzero(trace.action == Action.ALLOC)
        requests: dict[int, list[int]] = {}
        for number, address in enumerate(trace.address[allocs].tolist()):
            requests.setdefault(address, []).append(number)
        position = positions(trace)[allocs].tolist()
        found = []
        for at, event in self._saved:
            candidates = requests.get(event.address, ())
            last = bisect.bisect_right(candidates, at, key=position.__getitem__) - 1
            block = candidates[last] if last >= 0 else -1
            found.append([at, event.kind, event.round, event.saved, event.size_bytes, block])
        return found

    def _step_ends(self) -> list[int]:
        return [self._ends[number] for number in sorted(self._ends)]

    @property
    def has_requests(self) -> bool:
        """Return whether the job has requested memory of the card."""
        return self._position() > 0

    def _position(self) -> int:
        return self._account.position()

    def _mark(self, what: str) -> None:
        self._marks.append((self._position(), what))

    def _tag(self, category: Category, tensors: Iterable[Any]) -> None:
        with DisableTorchFunction():  # the follower would see each of these looks
            on_device = [t for t in owners.plain(tensors) if t.is_cuda and t.layout == torch.strided]
            addresses = [address for t in on_device if (address := _address(t)) is not None]
        if addresses:
            self._tags.append((self._position(), category, addresses))

    def _enter_module(self, module: torch.nn.Module, arguments: Any) -> None:
        # torch.compile traces hooks with the model. Ours would break its graph at every module, and change its memory.
        if torch.compiler.is_compiling():
            return
        stack = self._local.__dict__.setdefault("stack", [])
        if not stack and threading.get_ident() == self._main:
            self.course.forward(module, has_grad=torch.is_grad_enabled())
            if not self.course.in_backward:
                self._drain()
            if module not in self._roots:
                self._roots.add(module)
                if module not in self._names:  # not part of a known model
                    self.holdings.note(module)
                for path, child in module.named_modules():
                    self._names.add(child, path or type(module).__name__)
                # Not module.buffers(): Megatron's DistributedDataParallel has a list under that name.
                held = [*torch.nn.Module.parameters(module), *torch.nn.Module.buffers(module)]
                self._tag(Category.PARAMETER, held)
            self._tag(Category.INPUT, leaves_of(arguments))
            self._mark("forward")
        name = self._names.name(module) or ""
        scope = RecordFunctionFast(MODULE_RANGE + (name or type(module).__name__))
        scope.__enter__()
        stack.append((id(module), scope, name))
        self.course.in_forward |= threading.get_ident() == self._main

    def _leave_module(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        stack = self._local.__dict__.setdefault("stack", [])
        if (not stack or stack[-1][0] != id(module)) and all(key != id(module) for key, *_ in stack):
            return  # a foreign hook raised before ours
        # A module ended by a BaseException never arrives here: its entries are dropped when an outer one ends.
        while stack:
            key, scope, _ = stack.pop()
            scope.__exit__(None, None, None)
            if key == id(module):
                break
        if not stack and threading.get_ident() == self._main:
            self.course.in_forward = False
            self._mark("forward end")

    def _tag_gradients(self) -> None:
        self._tag(Category.GRADIENT, [p.grad for module in self._roots.alive() for p in torch.nn.Module.parameters(module)])

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():  # torch.compile(optimizer.step): Dynamo cannot trace the code below
            return
        self._in_step += 1
        self.course.steps_now(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._tag(Category.PARAMETER, parameters)
        self._tag(Category.GRADIENT, (p.grad for p in parameters))
        self._mark("step")

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._in_step -= 1
        self._mark("step end")
        self._tag(Category.OPTIMIZER_STATE, leaves_of(list(optimizer.state.values())))
        at = self._position()
        self._step_over()
        try:
            self.course.stepped(optimizer)  # this may end the job
        finally:
            self._ends[self.course.steps] = at


def _address(tensor: torch.Tensor) -> int | None:
    """Return the address of `tensor`, or None if it has no storage of its own.

    These are DTensor and other wrappers, tensors inside vmap, those of torch.compile's trial runs, and those of a lazy
    module before its first input (a ValueError).
    """
    if hasattr(tensor, "__tensor_flatten__"):
        return None
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError, ValueError):
        return None


# ------------------------------------------------------------------------------------------------ joining
def _rows_of(trace: Trace) -> Callable[[int], int]:
    """Return a function that maps a place in the history to the first row behind it."""
    position = positions(trace)
    return lambda at: int(np.searchsorted(position, at, side="right"))


def annotate(
    trace: Trace,
    marks: list[tuple[int, str]],
    step_ends: list[int],
    tags: list[tuple[int, Category, list[int]]],
    contexts: Contexts,
    workspace_sizes: set[int],
    workspaces: Iterable[int] = (),
) -> Trace:
    """Return `trace` with steps, phases, operators, modules and categories.

    Args:
        marks: (place in the history, what) of passes and of optimizers' steps.
        step_ends: Where each training step ends.
        tags: (place in the history, category, addresses) of tensors with a known category.
        contexts: The known facts about the allocations.
        workspace_sizes: Workspace sizes passed to libraries.
        workspaces: Addresses of those passed without the size of their block.
    """
    position = positions(trace)
    place, unmatched = _match(trace, contexts)
    known = _Known(place, contexts.table)
    step, phase = _steps_and_phases(position, marks, step_ends, known)
    table: dict[tuple[Any, ...], int] = {}
    numbers = np.full(len(contexts.table) + 1, -1, np.int32)  # the operator of each place; the last one: unknown
    used, first = np.unique(place[known.rows], return_index=True)
    for number in used[np.argsort(first)].tolist():  # in order of appearance
        context = contexts.table[number]
        if context.op or context.module:
            numbers[number] = table.setdefault((context.op, context.module, context.shapes, context.dtypes), len(table))
    operator = numbers[place]
    held_there = np.isin(trace.address, np.array([*workspaces], np.uint64))
    if not is_before(FREES_WORKSPACES):  # results get the same addresses afterwards
        held_there[:-1] &= (trace.action[1:] == Action.FREE_REQUESTED) & (trace.address[1:] == trace.address[:-1])
    is_workspace = np.isin(trace.size_bytes, [*workspace_sizes]) | held_there
    category, strangers = _categories(trace, position, marks, tags, known, phase, is_workspace)
    header = {**trace.header, "strange_parameters": strangers}
    if unmatched:
        header["warnings"] = [*header.get("warnings", []), f"{unmatched} allocations have no operator in the profile"]
    return dataclasses.replace(
        trace,
        step=step,
        phase=phase,
        operator=operator,
        category=category,
        operators=[Operator.of(*facts) for facts in table],
        header=header,
    )


class _Known:
    """The profile's facts about each row of a trace, in columns: whether the row is known, and its context."""

    def __init__(self, place: Any, table: list[ProfilePlace]) -> None:
        self._place, self._table = place, table
        self.rows = place >= 0
        self.backward = self.where(lambda context: context.backward)
        self.data = self.where(lambda context: context.data)
        self.optimizer = self.where(lambda context: context.optimizer)

    def where(self, wanted: Callable[[ProfilePlace], bool]) -> Any:
        """Return whether the context of each row is a wanted one."""
        return np.array([*map(wanted, self._table), False])[self._place]


def _match(trace: Trace, contexts: Contexts) -> tuple[Any, int]:
    """Return the place of each row, -1 for other than the history's allocations that are also in the profile, and the number
    of allocations that are not.

    Both list the same events in the same order; the profile may lack some (raw allocations outside any operator).
    """
    place = np.full(len(trace), -1)
    if not len(contexts.place):
        return place, 0
    allocs = np.flatnonzero(trace.action == Action.ALLOC)
    rows = allocs
    if not np.array_equal(trace.address[allocs], contexts.address):
        found, listed = [], iter(contexts.address.tolist())
        wanted = next(listed, None)
        for row, address in zip(allocs.tolist(), trace.address[allocs].tolist(), strict=True):
            if address == wanted:
                found.append(row)
                wanted = next(listed, None)
        rows = np.array(found, np.int64)
    place[rows] = contexts.place[: len(rows)]
    return place, len(allocs) - len(rows)


def _steps_and_phases(position: Any, marks: list[tuple[int, str]], step_ends: list[int], known: _Known) -> tuple[Any, Any]:
    ends = step_ends or [p for p, what in marks if what == "forward end"]
    first_forward = next((p for p, what in marks if what == "forward"), None)
    # A row belongs to the first step that ends at or after it; rows after the last end still belong to the last step.
    step = np.minimum(np.searchsorted(ends, position, side="left"), max(len(ends) - 1, 0)).astype(np.int32)
    # The last mark before each row, counted from 1; 0: there is none.
    last = np.searchsorted([p for p, _ in marks], position, side="left")
    what = np.array(["", *(what for _, what in marks)])[last]
    # After backward, the main thread may unscale or clip gradients; frees carry no context and stay with backward.
    backwards = np.cumsum(known.backward)
    backward_seen = backwards > np.concatenate([[0], backwards])[np.searchsorted(last, last)]  # since that mark
    after = np.where(known.rows, Phase.OPTIMIZER, Phase.BACKWARD)
    phase = np.select(
        [
            known.backward, known.data, what == "forward", (what == "step") | known.optimizer, what == "forward end",
            what == "step end",
        ],
        [
            Phase.BACKWARD, Phase.DATA, Phase.FORWARD, Phase.OPTIMIZER, np.where(backward_seen, after, Phase.FORWARD),
            Phase.DATA,
        ],
        Phase.BUILD,
    ).astype(np.uint8)  # fmt: skip
    if first_forward is not None:
        step[(position <= first_forward) & (phase == Phase.BUILD)] = -1
    return step, phase


def _categories(
    trace: Trace,
    position: Any,
    marks: list[tuple[int, str]],
    tags: list[tuple[int, Category, list[int]]],
    known: _Known,
    phase: Any,
    is_workspace: Any,
) -> tuple[Any, int]:
    """Return every row's category, and the number of parameters and buffers outside all blocks of the trace."""
    n = len(trace)
    is_alloc = trace.action == Action.ALLOC
    never = int(position[-1]) + 1 if n else 0
    freed_at = np.full(n, never)
    frees = np.flatnonzero((trace.action == Action.FREE_REQUESTED) & (trace.block >= 0))
    freed_at[trace.block[frees]] = position[frees]
    forward_ends = np.array([*(p for p, what in marks if what == "forward end"), never])
    end_of_forward = forward_ends[np.searchsorted(forward_ends[:-1], position, side="left")]
    is_activation = (phase == Phase.FORWARD) & (freed_at > end_of_forward)
    is_input = (phase == Phase.DATA) & ((freed_at == never) | known.data)
    category = np.select(
        [~is_alloc, is_activation, is_input], [Category.UNKNOWN, Category.ACTIVATION, Category.INPUT], Category.TEMPORARY
    ).astype(np.uint8)
    category[known.where(lambda context: takes_workspace(context.op)) & is_workspace] = Category.WORKSPACE
    allocs = np.flatnonzero(is_alloc)
    allocs = allocs[np.argsort(trace.address[allocs], kind="stable")]
    addresses, number = np.unique(trace.address[allocs], return_inverse=True)
    order = number * (never + 1) + position[allocs]  # by address, then by time
    strangers: set[int] = set()
    kinds = (Category.INPUT, Category.KV_CACHE, Category.OPTIMIZER_STATE, Category.GRADIENT, Category.PARAMETER)
    for kind in kinds:  # the last one counts
        tagged = [(at, np.array(tag, np.uint64)) for at, category_of, tag in tags if category_of is kind]
        if not tagged:
            continue
        at, tag = (
            np.repeat([at for at, _ in tagged], [len(tag) for _, tag in tagged]),
            np.concatenate([tag for _, tag in tagged]),
        )
        last = np.searchsorted(order, np.searchsorted(addresses, tag) * (never + 1) + np.minimum(at, never), side="right") - 1
        is_live = last >= 0
        rows = allocs[last[is_live]]
        is_live[is_live] = (trace.address[rows] == tag[is_live]) & (freed_at[rows] > at[is_live])
        category[allocs[last[is_live]]] = kind
        if kind is Category.PARAMETER:
            strangers = {*tag[~is_live].tolist()}
    owners.of_ranks(category, known.where)
    owners.claim(category, trace.size_bytes, position, freed_at, phase, marks)
    return category, len(strangers)
