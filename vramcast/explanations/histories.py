"""Memory snapshots: the failed request, what was live then by line of source, and whether the steps grew."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from vramcast.core.errors import TraceFileError, UsageError
from vramcast.core.units import gib
from vramcast.estimates.growth import kept_by, kept_so_far
from vramcast.explanations.answer import Explanation
from vramcast.explanations.causes import CHECKPOINT, EVALUATION, FRAGMENTATION, GROWTH, LIMIT, FullCard, place_of
from vramcast.explanations.changes import ALONE, NO_LIMIT, replayed, served
from vramcast.hardware.context import context_bytes as context_of
from vramcast.hardware.device import Device
from vramcast.simulator import curves
from vramcast.simulator.card import PAGE_BYTES, UNLIMITED_BYTES, Card
from vramcast.simulator.fragmentation import OLDER, fragmentation
from vramcast.simulator.replay import recorded_settings
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.settings import Settings
from vramcast.simulator.simulation import simulate
from vramcast.tracer.format.operators import Operator
from vramcast.tracer.format.snapshot import read_snapshot, trace_from_snapshot
from vramcast.tracer.format.trace import COURSE, Action, Category, Trace
from vramcast.tracer.hooks.torch_api import MODULE_CALLS

_JUDGED: Final = 8  # arbitrary: from this number of steps on, growth must go on in each quarter of them
_LEAST: Final = 3  # spec: vramcast/estimates/growth.py
_UNEVEN: Final = 4  # arbitrary: the largest gap between two steps, in medians
_MODEL: Final = {"forward", *MODULE_CALLS}
_FOREIGN: Final = ("site-packages", "dist-packages", "/lib/python", "<")
_STACK: Final = " < "  # between the functions of a stack, innermost first
_UNTIL: Final = "what the job would have asked for after the request that failed"


def explain_history(path: str | os.PathLike[str], device: Device | None) -> Explanation:
    """Return the explanation of a snapshot: of its last OOM event, or else of its course on a card."""
    snapshot = read_snapshot(path)
    histories = [[one.get("action") for one in history] for history in snapshot["device_traces"]]
    index = max(range(len(histories)), key=lambda i: ("oom" in histories[i], len(histories[i])), default=0)
    trace = _with_lines(trace_from_snapshot(snapshot, index), snapshot, index)
    if not len(trace):
        raise TraceFileError(f"'{path}' has no history: record one with torch.cuda.memory._record_memory_history().")
    context = context_of(device, 12, ("cublas",)).bytes if device is not None else 0
    if (trace.action == Action.OOM).any():
        return _recorded(trace, device.total_bytes if device is not None else None, context)
    if device is None:
        raise UsageError(f"'{path}' has no out-of-memory error: name the card on which to replay it (--on, --memory).")
    return explain_on_card(trace, recorded_settings(trace), device.total_bytes, context_bytes=context)


def _with_lines(trace: Trace, snapshot: Mapping[str, Any], index: int) -> Trace:
    """Return the trace of a snapshot with the stack's functions for operators, and the user's lines for modules."""
    known = {one.name.lower() for one in Action if one < Action.EMPTY_CACHE}
    entries = [one for one in snapshot["device_traces"][index] if one.get("action") in known] if len(trace) else []
    table: dict[Operator, int] = {}
    places = [table.setdefault(_operator(one.get("frames")), len(table)) for one in entries]
    return replace(trace, operators=list(table), operator=np.array(places, trace.operator.dtype))


def _operator(frames: Any) -> Operator:
    """Return a stack's functions, and `train.py:41` for the innermost frame of the user's own code, or else of any Python."""
    rows = [one for one in frames if isinstance(one, dict)] if isinstance(frames, list) else []
    python = [(str(one.get("filename")), one) for one in rows if str(one.get("filename")).endswith((".py", ">"))]
    own = [one for one in python if not any(part in one[0] for part in _FOREIGN)]
    name, one = (own or python or [("<", {"name": ""})])[0]
    line = str(one.get("name")) if name[0] == "<" else f"{os.path.basename(name)}:{one.get('line')}"
    return Operator(_STACK.join(str(one.get("name")) for one in rows), line)


def _recorded(trace: Trace, total_bytes: int | None, context: int) -> Explanation:
    """Return the explanation of the last OOM event."""
    row = int(np.flatnonzero(trace.action == Action.OOM)[-1])
    held, settings = fragmentation(trace, row), recorded_settings(trace)
    size, free, reserved = int(trace.size_bytes[row]), int(trace.header["oom_device_free_bytes"][-1]), held.reserved_bytes
    is_limited = settings.segment_bytes(settings.round_bytes(size)) <= free - PAGE_BYTES
    card = FullCard(size, total_bytes, free, held.live_bytes, held.free_bytes, allowed_bytes=reserved if is_limited else None)
    if total_bytes is not None:
        if total_bytes < reserved + free:
            raise UsageError(f"The history needs a card with {gib(reserved + free)} or more: name that card, or none.")
        card = replace(card, outside_bytes=context, others_bytes=max(total_bytes - reserved - free - context, 0))
    older = sum(block.size_bytes for one in held.segments for block in one.blocks if block.is_older)
    return _explained(trace, row, card, settings, reserved + free * (not is_limited), Counter({OLDER: older}), is_cut=True)


def explain_on_card(
    trace: Trace, settings: Settings, total_bytes: int, *, context_bytes: int = 0, others_bytes: int = 0
) -> Explanation:
    """Return what a card does with a job's trace.

    The trace's CONTEXT rows, with `others_bytes` of other processes, take their part of it, and so does `context_bytes`.
    """
    size_bytes = total_bytes - context_bytes
    found = simulate(trace, settings, Card(size_bytes))
    end, outcome = found.out_of_memory, found.outcome
    if end is None or outcome.stopped_at is None or outcome.reserved_bytes is None or outcome.active_bytes is None:
        runs = f"it runs on this card, with {gib(found.reserved)} reserved"
        return Explanation(None, False, runs, FullCard(total_bytes=total_bytes), unknown="what ended the job")
    at, row = max(outcome.stopped_at - 1, 0), max(end.row, 0)
    taken = int(curves.context_bytes(trace)[row])
    last = outcome.events[outcome.events["request"] == outcome.stopped_at]
    released = np.isin(last["action"], (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    live = int(outcome.active_bytes[at])
    reserved = int(outcome.reserved_bytes[at]) - int(last["size_bytes"][released].sum())
    whole = served(found.requests, settings, UNLIMITED_BYTES)
    card = FullCard(
        end.size_bytes, total_bytes, max(size_bytes - taken - reserved, 0), live, max(reserved - live, 0),
        context_bytes + taken - others_bytes, others_bytes or None, reserved if settings.memory_fraction < 1 else None,
        packs=whole is not None and whole["allocated"] + taken <= size_bytes,
    )  # fmt: skip
    return _explained(trace, row, card, settings, size_bytes, Counter())


def _explained(
    trace: Trace, row: int, card: FullCard, own: Settings, size_bytes: int, older: Counter[str], *, is_cut: bool = False
) -> Explanation:
    """Return the explanation of a failed request; if the history `is_cut`, it ends with this request."""
    names = [one.module or one.name or "unknown" for one in (*trace.operators, Operator(""))]
    ends = _step_ends(trace, row)
    kept = (kept_by if len(ends) >= _JUDGED else kept_so_far)(trace, ends) if len(ends) >= _LEAST else None
    live = trace.live_at(row)
    # Those of the first steps too, which `kept` leaves out.
    grows = np.isin(trace.operator[live], trace.operator[list(kept.rows)]) if kept is not None else np.zeros(len(live), bool)
    rows = live[grows & (live < (ends or (0,))[-1])]
    grown, lines = _by_line(trace, names, rows.tolist()), older + _by_line(trace, names, live.tolist())
    card = replace(card, kept_bytes=sum(grown.values()), steps=len(ends), place=_place(trace, row))
    cause, why = card.cause()
    asked = _requests(trace, row) if is_cut else Requests.of(trace)
    others: list[tuple[str, Requests, Settings, int]] = []
    if cause == LIMIT:
        others.append((NO_LIMIT, asked, replace(own, memory_fraction=1.0), size_bytes + card.free_bytes * is_cut))
    if cause == GROWTH:
        place = max(grown, key=lambda name: grown[name])
        why += f", most at {place}"
        freed = replace(asked, size_bytes=np.where(np.isin(asked.source, rows), 1, asked.size_bytes))
        others.append((f"free what each step keeps at {place}", freed, own, size_bytes))
    if card.others_bytes and is_cut:
        others.append((ALONE, asked, own, size_bytes + card.others_bytes))
    changes = tuple(replayed(asked, own, size_bytes, card.total_bytes, others))
    fails = cause == LIMIT or served(asked, own, size_bytes) is None
    certain = fails and (cause != FRAGMENTATION or any(one.change.startswith("PYTORCH") for one in changes))
    holders = [*_categories(trace, row, card), *(("line", name, size) for name, size in lines.most_common())]
    where = names[int(trace.operator[row])]
    return Explanation(cause, certain, why, card, where, tuple(holders), changes, 1, _UNTIL if is_cut else "")


def _requests(trace: Trace, row: int) -> Requests:
    """Return what must be served up to the OOM event in `row`, with the request that failed."""
    asked = Requests.of(trace)
    n = int(np.searchsorted(asked.source, row))

    def column(values: Any, last: int) -> Any:
        return np.append(values[:n], last).astype(values.dtype)

    sizes, streams = column(asked.size_bytes, int(trace.size_bytes[row])), column(asked.stream, int(trace.stream[row]))
    kinds, source = column(asked.kind, RequestKind.MALLOC), column(asked.source, row)
    return Requests(kinds, sizes, streams, column(asked.block, -1), source, asked.waits, asked.rules)


def _by_line(trace: Trace, names: Sequence[str], rows: Iterable[int]) -> Counter[str]:
    """Return the bytes of the blocks that begin at some rows, by line."""
    sizes, found = trace.rounded_bytes(), Counter[str]()
    for at in rows:
        found[names[int(trace.operator[at])]] += int(sizes[at])
    return found


def _categories(trace: Trace, row: int, card: FullCard) -> list[tuple[str, str, int]]:
    """Return what held the card by category, largest first; if no block has one, all blocks are one."""
    known = trace.by_category_at(row).items()
    held = {one.name.lower().replace("_", " "): size for one, size in known if one != Category.UNKNOWN}
    held["other blocks" if any(held.values()) else "allocated by PyTorch"] = max(card.live_bytes - sum(held.values()), 0)
    held |= {"reserved but unallocated": card.holes_bytes, "context and libraries": card.outside_bytes or 0}
    held |= {"other processes": card.others_bytes or 0, "free": card.free_bytes}
    return [("category", name, size) for name, size in sorted(held.items(), key=lambda one: -one[1]) if size]


def _place(trace: Trace, row: int) -> str:
    """Return the evaluation or checkpoint that the row is part of, if a training step came before."""
    if spans := trace.header.get(COURSE, {}).get("phases", ()):
        before = [str(name) for first, name in spans if int(first) <= row]
        return {"evaluation": EVALUATION, "checkpoint": CHECKPOINT}.get(before[-1], "") if "training" in before else ""
    trained = any("backward" in trace.operators[at].name for at in np.unique(trace.operator[:row]).tolist())
    return place_of(trace.operator_at(row).name.split(_STACK)) if trained else ""


def _step_ends(trace: Trace, row: int) -> tuple[int, ...]:
    """Return the row after each step before `row`; without steps in the trace, those of a place that requests evenly.

    It lies outside of models, whose loops are layers, and its steps also free memory: loops that do not build a model.
    """
    if int(trace.step.max(initial=-1)) >= 0:
        return tuple(end for _, end, _ in curves.steps(trace) if end <= row)
    has_stacks = any(_STACK in one.name for one in trace.operators)
    inside = [has_stacks and bool(_MODEL & {*one.name.split(_STACK)}) for one in trace.operators]
    places: dict[tuple[int, int], list[int]] = {}
    for at in np.flatnonzero((trace.action[:row] == Action.ALLOC) & (trace.operator[:row] >= 0)).tolist():
        if not inside[operator := int(trace.operator[at])]:
            places.setdefault((operator, 0 if has_stacks else int(trace.size_bytes[at])), []).append(at)
    live, share = curves.live_bytes(trace), 4 if has_stacks else 1
    found: list[list[int]] = []
    for rows in places.values():
        gaps = np.diff([*rows, row])
        if len(rows) > _LEAST and gaps.max() <= _UNEVEN * np.median(gaps) and _frees(live, rows, share):
            found.append(rows)
    return tuple(min(((len(rows), rows) for rows in found), default=(0, []))[1])


def _frees(live: curves.SizesBytes, rows: list[int], share: int) -> bool:
    """Return whether most steps free at least a `share` of the kept memory."""
    spans = [live[max(first - 1, 0) : end] for first, end in pairwise(rows)]
    freed = [(int(span.max()) - int(span[-1])) * share >= max(int(span[-1] - span[0]), 1) for span in spans]
    return 2 * sum(freed) > len(freed)
