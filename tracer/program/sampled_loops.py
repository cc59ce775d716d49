"""The loops of a job, seen at sampled places of their whole range.

    passes seen      0 1 2 3 4          the first, until they are equal
                     12 48 192 ...      ever wider jumps
                     2999 3000 3001     around each place where a condition or a size changes (`turns`)
                     99998 99999        the last two; then what follows the loop

Values do not matter on the null GPU, so a jump leaves out passes: the loop's values, integers that the passes would have
advanced, and what they would have kept are made up for (`sources`, `carried`). Only loops jump whose passes train a model or
run one, and not those over a model's layers, which differ. How far they jump depends on the job, and on the time only if it has
one rank: all ranks of a job must jump alike.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from types import CodeType, FrameType
from typing import Any, Final, Protocol

from vramcast.tracer.program.carried import CarriedState, job_frames
from vramcast.tracer.program.loop_sources import shown
from vramcast.tracer.program.sources import Batches, SampledIterable, passes, source_of
from vramcast.tracer.program.turns import FAR, Turn, Turns, Values, is_compiling, shifted
from vramcast.tracer.protocol.run_options import WATCHED_EVENTS
from vramcast.tracer.protocol.source_places import SourceLine

_EQUAL: Final = 2  # arbitrary: passes in a row that are equal to the one before them
_PATIENCE: Final = 16  # arbitrary: passes after which a loop jumps though no two of them are equal
_POINTS: Final = 3  # spec: the least number of points that shows a line
_LAST: Final = 2  # spec: the last pass meets what the one before it left
_MARGIN: Final = 3  # arbitrary: passes seen before a turn; a number may be read after its increment
_MOST_JUMPS: Final = 8  # arbitrary
_SHARE: Final = 0.2  # arbitrary: share of the time for what may come next of one loop
_WIDER: Final = 4  # arbitrary: the next place is at least that many times farther
_UNEVEN: Final = 1.5  # arbitrary: what passes of varying size keep may vary too
_LONGEST_STRIDE: Final = 16  # arbitrary
_ENDLESS: Final = 10**9  # arbitrary: more passes than a job makes; a loop without a known end is sampled that far
_MIB: Final = 1 << 20
Key = tuple[CodeType, int, bool]


class LoopCourse(Protocol):
    """The part of a job's course that its loops need."""

    work: int  # grows whenever a model is run or trained
    backwards: int

    @property
    def all_steps(self) -> int:
        """Return the training steps so far, with those left out."""

    @property
    def is_busy(self) -> bool:
        """Return whether a model is running."""

    @property
    def left_s(self) -> float | None:
        """Return the seconds left for the job; None: unknown, or it must not matter."""

    def may_jump(self, *, trains: bool) -> bool:
        """Return whether a loop may leave out passes."""

    def jumped(self, steps: int, *, grows: bool) -> None:
        """Record that passes with that many training steps were left out, and whether each keeps more."""

    def goes_on(self) -> None:
        """End the job: its innermost loop goes on without a known end."""


@dataclass(slots=True)
class _Begin:
    """The sums at the beginning of a pass, and where other loops were."""

    totals: tuple[int, ...]
    events: int
    work: int
    steps: int
    backwards: int
    readings: int
    places: dict[_Loop, int]
    at_s: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class _Loop:
    """One run of a loop.

    Attributes:
        key: Where it is: the function, the line, and whether it is the loader's own loop.
        index: Number of passes so far, with those left out.
        seen: Number of passes seen that trained or ran a model.
        stride: Number of passes that are compared together, because the passes alternate: accumulated gradients.
        recent: Events, requested bytes and loops inside of the last passes.
        equal: How many of them in a row were equal to the one before.
        unequal: How many in a row were not.
        last: Events, requested bytes and loops inside in the last pass, its growth of the live bytes, and its training steps.
        events: All events in it.
        live: Growth of the live bytes in the last passes.
        series: For each turn that the last pass read, its values in the last passes.
        expected: After a jump, their next values without and with it.
        seconds: Time of the last pass.
        steps: Training steps in it.
        moves: By other loop, its passes in the last one.
        usual: What an equal pass keeps.
        settled: The same of the last equal passes.
        turned: The conditions that have changed since.
        is_moved: Whether another loop has jumped in this pass, and this one with it.
        entered: The sums at its begin, without those of loops inside that have jumped.
        inside: Loops inside that have jumped in this pass, with what is equal in their passes: they count without their sums.
    """

    source: SampledIterable
    key: Key
    index: int = 0
    seen: int = 0
    stride: int = 1
    recent: deque[tuple[Any, ...]] = field(default_factory=lambda: deque(maxlen=2 * _LONGEST_STRIDE))
    equal: int = 0
    unequal: int = 0
    last: tuple[Any, ...] = ()
    events: int = 0
    live: deque[int] = field(default_factory=lambda: deque(maxlen=_POINTS))
    series: dict[Turn, deque[Values]] = field(default_factory=dict)
    expected: dict[Turn, tuple[Values, Values]] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    moves: dict[_Loop, int] = field(default_factory=dict)
    carried: CarriedState | None = None
    usual: dict[int, int] = field(default_factory=dict)
    settled: tuple[Any, ...] = ()
    turned: set[Turn] = field(default_factory=set)
    is_moved: bool = False
    entered: tuple[int, ...] = ()
    inside: frozenset[tuple[Key, tuple[Any, ...]]] = frozenset()
    looks: int = 0
    jumps: int = 0
    began: _Begin = field(default_factory=lambda: _Begin((0, 0, 0, 0), 0, 0, 0, 0, 0, {}))

    @property
    def can_skip(self) -> bool:
        """Return whether its values can be left out; otherwise it may still count passes that it does not make."""
        return self.source.is_free or type(self.source) is Batches or self.left is not None

    @property
    def is_driven(self) -> bool:
        """Return whether another loop makes its values."""
        return bool(self.moves) and not self.source.is_free and type(self.source) is not Batches

    def __str__(self) -> str:
        of = "" if self.source.total is None else f" of {self.source.total:,}"
        return f"pass {self.index + 1:,}{of} of the loop at {SourceLine(self.key[0].co_filename, self.key[1], '')}"

    @property
    def left(self) -> int | None:
        """Return the number of passes that follow, if known."""
        return None if self.source.total is None else self.source.total - self.index


class SampledLoops:
    """All loops of a job.

    Args:
        course: The job's course.
        totals: Returns the allocator's sums of events and bytes, then the live and the reserved bytes.

    Attributes:
        stuck: Conditions and sizes with a number that does not advance with its loop, in words.
    """

    def __init__(self, course: LoopCourse, totals: Callable[[], tuple[int, int, int, int]]) -> None:
        self.stuck: dict[str, None] = {}
        self._course = course
        self._totals = totals
        self._main = os.getpid(), threading.get_ident()  # a worker of a data loader is a fork of the job
        self._turns = Turns()
        self._loops: list[_Loop] = []
        self._batches: weakref.WeakKeyDictionary[Any, _Loop] = weakref.WeakKeyDictionary()
        self._equal: defaultdict[Key, set[tuple[Any, ...]]] = defaultdict(set)  # see `_Loop.last`
        self._idle: set[Key] = set()  # most loops train nothing
        self._unexplained: Counter[Key] = Counter()  # looks at what its passes keep, in vain
        self._sampled: set[Key] = set()  # loops that were seen over their whole range
        self._is_broken = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Sample the loops of all that is imported or run inside the context."""
        with shown(self.values, self.passes, self._turns.come):
            yield

    @property
    def place(self) -> str:
        """Return the innermost running loop that trains or runs a model, in words."""
        return next((str(loop) for loop in reversed(self._loops) if loop.seen), "the last step")

    def steps_known(self) -> int | None:
        """Return the number of training steps of the running loops, if each goes on as it did; None: unknown."""
        end = self._course.all_steps
        for loop in reversed(self._loops):
            if loop.is_driven:
                continue
            if loop.left is None:
                return None
            end = loop.began.steps + loop.left * (loop.steps or end - loop.began.steps) // loop.stride
        return end if self._loops else None

    def doubts(self) -> list[str]:
        """Return what could not be followed, in words with its line."""
        drawn = [f"{turn.text} at {turn}, which is drawn and had one value only" for turn in self._turns.now if turn.is_drawn]
        return [*self.stuck, *drawn]

    # -------------------------------------------------------------------------------------------- loops of the job
    def values(self, values: Any) -> Any:
        """Return the values of a `for`, in whose place this is called."""
        if is_compiling() or not self._sees():
            return values
        return self._each(source_of(values), sys._getframe(1))

    def passes(self) -> Any:
        """Return a value for each pass of a `while`, in whose place this is called."""
        return self._each(passes(), sys._getframe(1)) if self._sees() else repeat(None)

    def _sees(self) -> bool:
        is_main = (os.getpid(), threading.get_ident()) == self._main
        return is_main and not self._course.is_busy and not self._is_broken

    def _each(self, source: SampledIterable, frame: FrameType) -> Iterator[Any]:
        loop = self._begin(source, frame)
        course = self._course
        try:
            while True:
                try:
                    value = [next(source)]
                except StopIteration:
                    return
                work, is_layer = course.work, _has_module(value[0])
                yield value.pop()  # a plain loop does not hold what it gives
                if course.work != work and not is_layer:
                    self._passed(loop, sys._getframe(1))
                else:
                    loop.index += 1
        finally:
            self._end(loop)

    def draws(self, iterator: Any, frame: FrameType) -> None:
        """Record that the next batch of a data loader's iterator is drawn."""
        if not self._sees():
            return
        loop = self._batches.get(iterator)
        frame = next(job_frames(frame), frame)
        if loop is None:
            self._batches[iterator] = loop = self._begin(Batches(iterator), frame)
            weakref.finalize(iterator, self._end, loop)  # its reader may leave it before its end
        elif self._course.work != loop.began.work:
            self._passed(loop, frame)
        else:
            loop.index += 1

    def ends(self, iterator: Any) -> None:
        """Record that a data loader's iterator has given its last batch, or begins again."""
        loop = self._batches.pop(iterator, None)
        if loop is not None:
            self._end(loop)

    def _begin(self, source: SampledIterable, frame: FrameType) -> _Loop:
        place = frame.f_code, frame.f_lineno, type(source) is Batches
        loop = _Loop(source, place)
        self._loops.append(loop)
        if place in self._idle:
            loop.began.work = self._course.work
        else:
            self._start(loop)
        return loop

    def _end(self, loop: _Loop) -> None:
        if loop in self._loops:
            self._loops.remove(loop)
        if not loop.seen:
            self._idle.add(loop.key)
        elif loop.jumps:
            self._apart(loop)
        for one in self._loops:
            one.began.places.pop(loop, None)
            one.moves.pop(loop, None)
        loop.carried, loop.moves, loop.began.places = None, {}, {}  # it refers to other loops, and they to it

    def _apart(self, loop: _Loop) -> None:
        """Let a loop that has jumped count in the passes of those around it without its sums: they depend on its jumps."""
        if loop.left == 0:
            self._sampled.add(loop.key)
        events, requested, *_ = (now - then for now, then in zip(self._totals(), loop.entered, strict=True))
        for one in self._loops:
            one.inside |= {(loop.key, loop.settled)}
            one.entered = _plus(one.entered, (events, requested, 0, 0))
            one.began.totals = _plus(one.began.totals, (events, requested, 0, 0))

    # -------------------------------------------------------------------------------------------- passes
    def _start(self, loop: _Loop) -> None:
        self._turns.begin_pass()
        loop.inside = frozenset()
        totals = self._totals()
        loop.entered = loop.entered or totals
        loop.began = _Begin(
            totals, totals[0], self._course.work, self._course.all_steps, self._course.backwards, self._turns.readings,
            {one: one.index for one in self._loops if one is not loop},
        )  # fmt: skip

    def _passed(self, loop: _Loop, frame: FrameType) -> None:
        """Record the end of a pass that trained or ran a model, and jump."""
        try:
            loop.index += 1
            loop.seen += 1
            if loop.key in self._idle:
                self._idle.remove(loop.key)
            elif loop.seen % loop.stride:
                return
            else:
                self._ended(loop, frame)
            self._start(loop)
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryError":  # what the passes would have kept fills the card
                raise
            self._is_broken = True
            self.stuck[f"what follows {loop}, which could not be sampled ({type(error).__name__}: {error})"] = None

    def _ended(self, loop: _Loop, frame: FrameType) -> None:
        began = loop.began
        loop.seconds = time.monotonic() - began.at_s
        loop.steps = self._course.all_steps - began.steps
        passed = ((one, one.index - before) for one, before in began.places.items() if one in self._loops)
        loop.moves = {one: moved for one, moved in passed if moved}
        self._compare(loop)
        self._read(loop)
        if self._takes_stride(loop):
            return
        is_moved, loop.is_moved = loop.is_moved, False
        if loop.carried is not None and is_moved:
            loop.carried.rebase()
        elif loop.carried is not None:
            loop.carried.look()
            loop.looks += 1
            self._learn(loop)
        if not is_moved and self._course.may_jump(trains=self._course.backwards > began.backwards):
            count = self._jump(loop, frame)
            if count > 0:
                self._skip(loop, count)

    def _compare(self, loop: _Loop) -> None:
        totals, equal = self._totals(), self._equal[loop.key]
        events, requested, live, reserved = (now - then for now, then in zip(totals, loop.began.totals, strict=True))
        what = events, requested, loop.inside
        this = *what, live, loop.steps
        is_equal = this == loop.last and reserved == 0
        loop.equal = loop.equal + 1 if is_equal else int(this in equal)
        loop.unequal = 0 if is_equal else loop.unequal + 1
        loop.last, loop.events = this, totals[0] - loop.began.events
        loop.recent.append(what)
        if loop.seen > 1:  # the first pass makes what stays
            loop.live.append(live)
        if loop.equal and loop.settled != ():
            for turn in loop.turned:
                turn.is_lasting = loop.settled != what and turn.is_lasting is not False
        if loop.equal:
            loop.settled = what
            loop.turned.clear()
        if loop.equal >= _EQUAL:
            equal.add(this)

    def _takes_stride(self, loop: _Loop) -> bool:
        """Return whether passes of a loop are compared together from now on."""
        recent = [*loop.recent]
        if loop.stride > 1 or loop.jumps or loop.equal >= _EQUAL:
            return False
        strides = range(2, len(recent) // 2 + 1)
        stride = next((one for one in strides if recent[-one:] == recent[-2 * one : -one] and len({*recent[-one:]}) > 1), 0)
        if stride:
            loop.stride, loop.seen = stride, 0
            loop.carried, loop.looks, loop.series, loop.last, loop.equal, loop.unequal = None, 0, {}, (), 0, 0
            loop.live.clear()
        return stride > 0

    def _read(self, loop: _Loop) -> None:
        """Note the values of all turns that came in this pass."""
        before, loop.series = loop.series, {}
        for turn, (at, values) in self._turns.now.items():
            if at <= loop.began.readings:
                continue
            expected = loop.expected.get(turn)
            if expected is not None and _is_stuck(*expected, values):
                self.stuck[f"the turn of {turn.text} at {turn}, with a number that does not advance with the loop"] = None
            loop.series[turn] = before.get(turn) or deque(maxlen=_POINTS)
            loop.series[turn].append(values)
            if len(loop.series[turn]) > 1 and turn.changes(loop.series[turn]):
                loop.turned.add(turn)
                if not loop.unequal:  # it allocated nothing, so once is enough
                    turn.seen[turn.is_true(values)] += 1
        loop.expected = {}

    # -------------------------------------------------------------------------------------------- jumps
    def _jump(self, loop: _Loop, frame: FrameType) -> int:
        """Return how many passes to leave out."""
        left = None if loop.left is None else loop.left // loop.stride
        last = 1 if self._is_scarce(loop) else _LAST
        if loop.is_driven or (left is not None and left <= last):
            return 0
        patience = min(max(WATCHED_EVENTS // max(loop.events, 1), _POINTS), _PATIENCE)
        if loop.last[3] and self._unexplained[loop.key] >= _EQUAL:
            loop.carried = None
            return 0
        if loop.carried is None:
            if loop.equal or loop.unequal >= patience - _POINTS:
                is_list = frame.f_code.co_name == "<listcomp>"
                loop.carried = CarriedState(loop.index if is_list else None)
            return 0
        wanted = 1 if loop.last in self._equal[loop.key] or self._is_scarce(loop) else _EQUAL
        is_ready = (loop.equal >= wanted or loop.unequal >= patience) and loop.looks >= wanted
        has_news = any(turn.has_news(one) for turn, one in loop.series.items())
        if not is_ready or has_news:
            return 0
        if not self._is_explained(loop):
            self._unexplained[loop.key] += 1
            return 0
        turn = self._next_turn(loop)
        if not loop.can_skip and turn is None:
            return 0  # its values are made one by one, and their number is unknown
        if left is None and turn is None and loop.index > _ENDLESS:
            self._course.goes_on()
        wide = self._next_place(loop)
        count = wide if turn is None else min(wide, max(turn - _MARGIN, 0))
        return count if left is None else min(count, left - last)

    def _next_place(self, loop: _Loop) -> int:
        """Return how many passes to leave out before the next place of a loop in which nothing changes."""
        places = min(max(WATCHED_EVENTS // max(loop.events, 1), 1), _MOST_JUMPS, self._afforded(loop))
        total = loop.source.total
        wider = float(_WIDER) if total is None else max(_WIDER, (total / loop.index) ** (1 / places))
        return int(loop.index * (wider - 1)) // loop.stride

    def _afforded(self, loop: _Loop) -> int:
        """Return how many more places of a loop to see: as the time allows, and one if the loop was seen before."""
        if loop.key in self._sampled:
            return 1
        left_s = self._course.left_s
        return _MOST_JUMPS if left_s is None else min(max(int(left_s * _SHARE / loop.seconds), 1), _MOST_JUMPS)

    def _is_scarce(self, loop: _Loop) -> bool:
        """Return whether there is time for one more place only: one equal pass is enough then, and the last pass."""
        return self._afforded(loop) == 1

    def _next_turn(self, loop: _Loop) -> int | None:
        """Return after how many passes the next known turn comes that was not seen."""
        passes = loop.left // loop.stride if loop.left is not None else FAR
        found = [turn.next_new(series, passes) for turn, series in loop.series.items() if len(series) == _POINTS]
        return min((one for one in found if one is not None), default=None)

    def _is_explained(self, loop: _Loop) -> bool:
        """Return whether the containers hold all that the passes keep on the card."""
        assert loop.carried is not None
        grown = loop.last[3]
        if loop.equal and not grown:
            return True
        held = loop.carried.held_bytes(loop.carried.steady)
        return held == grown if loop.equal else sum(loop.live) <= len(loop.live) * held * _UNEVEN + _MIB

    def _learn(self, loop: _Loop) -> None:
        """Learn what a pass keeps in which a condition has its turn."""
        assert loop.carried is not None
        gained, usual = loop.carried.gained, loop.usual
        more = {owner: count - usual.get(owner, 0) for owner, count in gained.items() if count > usual.get(owner, 0)}
        came = [turn for turn, one in loop.series.items() if len(one) > 1 and turn.changes(one) and turn.is_true(one[-1])]
        if more and came:
            min(came, key=lambda turn: turn.seen[True]).kept = loop.carried, more  # the rarest one explains it
        elif loop.equal:
            loop.usual = gained

    def _skip(self, loop: _Loop, count: int) -> None:
        """Leave out some passes, and make up for what they would have left behind."""
        assert loop.carried is not None
        others = {one: moved for one, moved in loop.moves.items() if one in self._loops}
        for one, moved in others.items():
            if type(one.source) is not Batches and one.left is not None:
                count = min(count, (one.left - _LAST) // moved)
        if count > 0 and loop.can_skip:
            count = loop.source.skip(count * loop.stride) // loop.stride
        if count <= 0:  # another loop ends first
            return
        before = self._totals()
        kept = [
            (turn, turn.hits(series, count)) for turn, series in loop.series.items() if turn.kept and len(series) == _POINTS
        ]
        loop.carried.advance(count)
        loop.carried.fill(loop.carried.steady, count, is_new=loop.last[3] > 0)
        for turn, times in kept:
            if times and turn.kept is not None:
                turn.kept[0].fill(turn.kept[1], times, is_new=True)
        self._course.jumped(loop.steps * count, grows=loop.last[3] > 0)
        loop.jumps += 1
        self._turns.move({turn: shifted(series, count)[-1] for turn, series in loop.series.items() if len(series) == _POINTS})
        filled = [now - then for now, then in zip(self._totals(), before, strict=True)]
        for one, moved in {loop: loop.stride, **others}.items():
            self._shift(one, moved * count, with_values=one is not loop)
            one.began.totals = _plus(one.began.totals, filled)
            one.is_moved = one is not loop
        loop.carried.rebase()

    def _shift(self, loop: _Loop, count: int, *, with_values: bool) -> None:
        """Advance a loop by some passes; the data of a loader stay where they are, unless it jumps itself."""
        strides = count // loop.stride
        whole = {turn: series for turn, series in loop.series.items() if len(series) == _POINTS}
        loop.series = {turn: shifted(series, strides) for turn, series in whole.items()}
        loop.expected = {turn: (shifted(one, 1)[-1], shifted(one, strides + 1)[-1]) for turn, one in whole.items()}
        if with_values and type(loop.source) is Batches:
            return
        loop.index += count
        if with_values:
            (loop.source.skip if loop.source.is_free else loop.source.moved)(count)
        for one in self._loops:
            if loop in one.began.places:
                one.began.places[loop] += count


def _has_module(value: Any) -> bool:
    """Return whether a loop's value is a module, or has one beside its number or its input."""
    torch = sys.modules.get("torch")  # this module comes before it
    return torch is not None and any(isinstance(one, torch.nn.Module) for one in (value if type(value) is tuple else (value,)))


def _plus(totals: tuple[int, ...], more: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(sum, zip(totals, more, strict=True))) if totals else totals


def _is_stuck(next_values: Values, expected: Values, values: Values) -> bool:
    """Return whether a number that should have advanced with the loop has gone on as if the loop had not jumped."""
    return any(
        type(one) is int and one == before and one != after
        for before, after, one in zip(next_values, expected, values, strict=True)
    )
