"""The answer in few lines: verdict, peak, bound, what holds the memory, where, and the assumption that matters most."""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.core.text import printable
from vramcast.core.units import gib
from vramcast.estimates.communicators import strangers_on
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import DEVICES
from vramcast.hardware.device import Device
from vramcast.report.card_bar import PARTS
from vramcast.simulator.settings import Settings
from vramcast.simulator.what_if import min_feasible
from vramcast.tracer.format.operators import is_number
from vramcast.tracer.format.rank_facts import beside_bytes, processes_beside
from vramcast.tracer.format.serving import EngineAccounts
from vramcast.tracer.format.trace import CLASSES

WIDTH: Final = 100  # spec: the longest line of an answer on a wide terminal
NAME: Final = 9  # arbitrary: cells of a line's name
_MODULE: Final = 20  # arbitrary: characters of the module for which inputs of any length leave room
_HOLDERS: Final = 3  # arbitrary: categories that the answer names; `--details` has all
# By part of the margin, the assumption and the step that removes it.
_ASSUMED: Final = {
    "context": ("the CUDA context", "vramcast doctor --measure-context"),
    "allocator": ("past errors recur", "vramcast learn from your runs"),
    "process": ("past errors recur", "vramcast learn from your runs"),
    "libraries": ("NCCL and other ranks", "vramcast measure on the cluster"),
    "assumed": ("unanswered calls", "a measured run of this job"),
    "values": ("shapes depend on values", "a measured run of this job"),
    "speed": ("the card may be slow", "a measured run of this job"),
    "growth": ("all of the evaluation", "moving kept tensors to the host"),
}
_EXPANDABLE: Final = "expandable_segments:True"
_UNLIKE: Final = "unlike the measured ones"
_OF_PROCESSES: Final = ("contexts of other processes", "vramcast measure on the card")


class Line(NamedTuple):
    """A line of the answer: its name and its words."""

    name: str
    words: str


def headline(estimate: Estimate) -> str:
    """Return the verdict with its deciding fact, or without a card the cards that the job fits on."""
    return _cut(_headline(estimate), WIDTH)


def _headline(estimate: Estimate) -> str:
    if not estimate.has_card:
        return _cards(estimate)
    if estimate.serving is not None and estimate.serving.starts is not None:
        return str(estimate.verdict)
    verdict, bound = estimate.verdict, gib(estimate.upper_bound)
    card = f"{gib(estimate.card_bytes)} of {_cut(estimate.job.device.name, 40)}"
    if verdict.value == "fits":
        return f"fits: at most {bound} of the {card}" + (f", {_UNLIKE}" if estimate.bound.is_out_of_distribution else "")
    if estimate.growth is not None and estimate.growth.fills(estimate.card_bytes):
        return f"does not fit: {estimate.growth}"
    if estimate.process > estimate.card_bytes:
        return f"does not fit: needs {gib(estimate.need().least_bytes)}, more than the {card}"
    if estimate.out_of_memory is not None:
        return f"does not fit: runs out of memory in the {card}"
    if estimate.doubts:
        return f"uncertain: {estimate.doubts[0]}"
    return f"uncertain: needs {gib(estimate.process)}, and perhaps {bound}, of the {card}"


def _cards(estimate: Estimate) -> str:
    if estimate.doubts:
        return f"uncertain on every card: {estimate.doubts[0]}"
    roomy = _roomy(estimate)
    if not roomy:
        return "no known card has room (--on CARD asks for a verdict)"
    is_all = len(roomy) == sum(card.total_bytes >= roomy[0].total_bytes for card in DEVICES.values())
    more = " and larger" if is_all else f" and {len(roomy) - 1} others"
    return f"room on {roomy[0].key} ({gib(roomy[0].total_bytes)}){more} (--on CARD asks for a verdict)"


def _roomy(estimate: Estimate) -> list[Device]:
    """Return the known cards that a job fits on, smallest first."""
    # The job was traced on another card: on a small card, its bound may be larger than `fits` computes from this trace.
    least_bytes = 0 if estimate.serving is not None else estimate.upper_bound  # an engine divides each card anew
    by_size = sorted(DEVICES.values(), key=lambda card: card.total_bytes)
    return [card for card in by_size if card.total_bytes >= least_bytes and estimate.fits(card.key)]


def lines(estimate: Estimate, elsewhere: str = ": --details") -> tuple[Line, ...]:
    """Return the lines below the headline and the bar; `elsewhere` ends the count of the remarks that are not among them."""
    found = (
        ("peak", _peak(estimate)),
        ("bound", _bound(estimate)) if estimate.serving is None else ("serves", str(estimate.serving)),
        ("holds", _holds(estimate) if estimate.serving is None else divides(estimate.serving)),
        ("where", _where(estimate)),
        ("try", _way_out(estimate)) if _is_too_large(estimate) else ("assumes", _assumes(estimate, elsewhere)),
    )
    return tuple(Line(name, _cut(words, WIDTH - NAME)) for name, words in found)


def _peak(estimate: Estimate) -> str:
    context, beside = estimate.context, beside_bytes(estimate.trace)
    contexts = f"{contexts_of(estimate)} {gib(context.bytes - beside)}"
    words = f"{gib(estimate.process)} = reserved {gib(estimate.reserved)} + {contexts}"
    words += f" (assumed{'' if estimate.has_card else f', on {estimate.job.device.key}'})" if context.assumed else ""
    words += f" + other processes {gib(beside)}" if beside else ""
    return words + (f", fullest of {estimate.world_size} ranks" if estimate.world_size > 1 else "")


def contexts_of(estimate: Estimate) -> str:
    """Return the name of the part of the peak that holds the contexts on the card: `CUDA context`, `25 CUDA contexts`."""
    count = 1 + strangers_on(estimate.trace) + len(processes_beside(estimate.trace))
    return "CUDA context" if count == 1 else f"{count} CUDA contexts"


def _bound(estimate: Estimate) -> str:
    if estimate.doubts:
        return f"none for the whole job; {gib(estimate.upper_bound)} for the observed part"
    return f"{gib(estimate.upper_bound)} for {bound_holds_for(estimate)}"


def bound_holds_for(estimate: Estimate) -> str:
    """Return what the bound holds for: a share of jobs like it, or nothing certain if the job is unlike the measured ones."""
    if estimate.bound.is_out_of_distribution:
        return f"a job {_UNLIKE}: the wider of two bounds"
    return estimate.bound.support.words(estimate.level)


def _holds(estimate: Estimate) -> str:
    parts = {name: size for name, size in estimate.breakdown.items() if name not in ("context", "other_processes") and size}
    largest = sorted(parts, key=lambda name: -parts[name])[:_HOLDERS]
    return ", ".join(f"{PARTS[name].name} {gib(parts[name])}" for name in largest) or "nothing"


def divides(serving: EngineAccounts) -> str:
    """Return what an engine's share of the card holds besides the KV cache."""
    parts = {
        "weights": serving.weights_bytes, "peak activation": serving.activation_bytes, "graphs": serving.graphs_bytes,
        "outside PyTorch": serving.non_torch_bytes,
    }  # fmt: skip
    return ", ".join(f"{name} {'unknown' if size is None else gib(size)}" for name, size in parts.items())


def _where(estimate: Estimate) -> str:
    at = estimate.peak_at
    if at["step"] is None:
        return "nowhere: no memory was requested"
    rank = f"rank {estimate.fullest_rank}, " if estimate.ranks else ""
    words = f"{rank}{step_words(at['step'])}, {at['phase']}"
    module = at["module"] or ""
    if is_number(module):  # a child of a Sequential
        known = estimate.trace.header.get(CLASSES)
        kind = known.get(module) if isinstance(known, dict) else None  # a client's trace may hold anything
        module = f"module {module}{f' ({kind})' if kind else ''}"
    name = module or ("" if at["phase"] == "optimizer" else at["op"]) or ""  # an optimizer's operators are the step itself
    adapted = estimate.adapted.title if estimate.adapted is not None else ""
    room = WIDTH - NAME - len(words) - 2
    seen = f"; {estimate.course.seen}" if estimate.course.seen.steps else ""
    inputs = seen or _inputs(estimate.inputs_text, adapted)
    if not seen and len(name) + len(inputs) > room:
        inputs = _inputs(estimate.inputs_text.partition(" (default")[0], adapted)  # the details have all of it
    room = max(room - len(inputs), _MODULE)
    # A part of a module's path still says where; a part of an operator's name does not.
    name = printable(module, room) if module else name if len(name) <= room else ""
    return f"{words}{f', {name}' if name else ''}{inputs}"


def _inputs(*said: str) -> str:
    return f"; with {', '.join(filter(None, said))}" if any(said) else ""


def step_words(number: int | None) -> str:
    """Return a step of `Estimate.peak_at` in words."""
    return "no step" if number is None else f"step {number}" if number else "before step 1"


def _is_too_large(estimate: Estimate) -> bool:
    return estimate.has_card and estimate.serving is None and estimate.verdict.value == "does not fit"


def _way_out(estimate: Estimate) -> str:
    """Return the missing bytes of a job that does not fit, and what costs least: a setting, a change of the job, a card."""
    need, growth, conf = estimate.need(), estimate.growth, estimate.alloc_conf.value
    other = ",".join(filter(None, (conf, _EXPANDABLE)))
    if growth is not None and growth.fills(need.card.total_bytes):
        ways = ["free what the loop keeps"]
    elif (
        _EXPANDABLE not in conf
        and (least := min_feasible(estimate.trace, Settings.parse(other))) is not None
        and least <= need.card.total_bytes
    ):
        ways = [f"--alloc-conf {other} ({gib(least)})"]
    else:
        ways = ["--advise", "a smaller batch"]
    # A part of a card (MIG) is seldom at hand.
    ways += [f"--on {card.key}" for card in _roomy(estimate) if " MIG " not in card.name][:1]
    missing_bytes = need.least_bytes - need.card.total_bytes
    missing = f"{gib(missing_bytes)} short: " if missing_bytes > 0 else ""
    return missing + ", or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))


def _assumes(estimate: Estimate, elsewhere: str) -> str:
    """Return the assumption that matters most with its remedy, and the number of further remarks."""
    if estimate.doubts:
        return _and_more(_of_doubt(estimate), len(estimate.doubts) - 1 + len(estimate.warnings), elsewhere)
    if estimate.serving is not None and estimate.serving.starts is not None:
        more_bytes = estimate.serving.outside_more_bytes
        size = "an unknown size" if more_bytes is None else f"at most {gib(more_bytes)}"
        words = f"{size} more outside PyTorch, as other starts logged"
        return _and_more(words, len(estimate.warnings), elsewhere)
    parts = estimate.margin()
    if not parts:
        return _and_more("nothing that widens the bound", len(estimate.warnings), elsewhere)
    most = max(parts, key=lambda part: part.saves_bytes)
    is_alone = most.part == "libraries" and not estimate.context.has_nccl
    what, remedy = _OF_PROCESSES if is_alone else _ASSUMED[most.part]
    is_said = most.part == "context"
    hidden = [one for one in estimate.warnings if not (is_said and one.startswith("context "))]
    return _and_more(f"{what}: {remedy} saves {gib(most.saves_bytes)}", len(hidden), elsewhere)


def _of_doubt(estimate: Estimate) -> str:
    if estimate.unbounded_calls:
        return "shapes depend on values: measure this job once on the card"
    if estimate.course.ended:
        return "the part after its end: repair the command, and run it again"
    if estimate.course.not_reached:
        return "the part not observed: follow the command further (--until end), or make its turn come earlier"
    return "the loop goes on like this: free what it keeps, or observe more --steps"


def _and_more(words: str, count: int, elsewhere: str) -> str:
    return words + (f" ({count} more{elsewhere})" if count > 0 else "")


def _cut(text: str, limit: int) -> str:
    """Return text as one line without control characters; the end of a longer one is cut."""
    text = " ".join(printable(" ".join(text.split()), len(text)).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
