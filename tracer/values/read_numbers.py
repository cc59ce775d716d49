"""Unknown numbers that the host read from the card, as Python numbers that track their own use.

    total += loss.item() / n              a derived number, tracked like the one that was read
    print(f"{total:.4f}")                 decides nothing
    if total < 1e-3: break                decides a branch: a further run of the job takes the other one
    torch.empty(mask.sum().item())        decides a size: a further run has the largest
    int(total), numpy.mean([total])       makes a plain, untracked number: further runs have others

To formats, JSON, NumPy and torch they are `float` and `int`. Uses by other C code (`range`, `math.exp`) are not seen; an
integer without any observed use is assumed to decide something.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from vramcast.tracer.format.ledger import SPOKEN, CallHandling
from vramcast.tracer.hooks.tensors import LEAVES
from vramcast.tracer.hooks.torch_api import CHART_POINTS
from vramcast.tracer.protocol.run_options import Answers
from vramcast.tracer.values.loop_exits import goes_on
from vramcast.tracer.values.shown_numbers import is_only_shown

LARGE_FLOAT: Final = 100.0  # arbitrary: a loss that has diverged; exp() of it is a number
MAX_PER_STEP: Final = 1000  # arbitrary: in one step; ends a loop until convergence, which would never end
_LOOPS: Final = 100  # arbitrary: comparisons at one place in a step whose numbers are used up that make it a loop
_OURS: Final = str(Path(__file__).parents[1])
_TORCH: Final = str(Path(torch.__file__).parent)
_NOT_THE_JOBS: Final = (_OURS, _TORCH, str(Path(torch.__file__).parents[1] / "numpy"))
# Decisions in these files of torch affect no size and no branch of the job: a learning rate, a scale, a point of a chart.
_HARMLESS: Final = ("torch/optim/lr_scheduler.py", "torch/amp/grad_scaler.py", CHART_POINTS)
_SIZED_BY_FLOATS: Final = frozenset({"arange", "interpolate", "linspace", "logspace", "range"})
_VALUED: Final = frozenset({
    "add", "addcdiv", "addcmul", "addmm", "as_tensor", "clamp", "clamp_max", "clamp_min", "clip", "div", "divide", "eq", "fill",
    "floor_divide", "floordiv", "fmod", "full_like", "ge", "gt", "iadd", "idiv", "imul", "ipow", "isub", "itruediv", "le",
    "lerp", "lt", "masked_fill", "maximum", "minimum", "mod", "mul", "multiply", "ne", "pow", "radd", "rdiv", "remainder",
    "rfloordiv", "rmul", "rpow", "rsub", "rtruediv", "scalar_tensor", "sub", "subtract", "tensor", "true_divide", "truediv",
    "where",
})  # fmt: skip


@dataclass(slots=True, eq=False)
class NumberOrigin:
    """The origin of a number.

    Attributes:
        decisions: Receives each use of the number.
        place: Where it was read, `train.py:12`.
        has_most: Whether a run with the largest answers gives the largest value it can have.
        reads: Number of reads it is derived from; more than one: a sum.
        is_used: Whether any use was seen.
        is_shown: Whether it was formatted as text.
        may_count: Whether the function that read it has a `range`.
    """

    decisions: Decisions
    place: str
    has_most: bool
    reads: int = 1
    is_used: bool = False
    is_shown: bool = False
    may_count: bool = True


class Decisions:
    """Decisions that depended on unknown numbers.

    Args:
        answers: Answers to give for drawn values.
    Attributes:
        entries: Number of occurrences, by kind and text of the ledger entry.
        are_there: Whether any such number was read.
    """

    def __init__(self, answers: Answers) -> None:
        self.entries: Counter[tuple[CallHandling, str]] = Counter()
        self.are_there = False
        self._answers = answers
        self._compared: Counter[str] = Counter()  # in this step, by place
        self._whole: list[NumberOrigin] = []

    def step_over(self) -> None:
        """Note that an optimizer has stepped."""
        self._compared.clear()

    # -------------------------------------------------------------------------------------------- numbers
    def number(self, value: Any, *, has_most: bool = False, is_alone: bool = True) -> Any:
        """Return a number that was read as one that tracks its use.

        Args:
            value: A float or an int; any other value is returned unchanged.
            has_most: See `NumberOrigin`.
            is_alone: Whether it was read alone, not with others of its tensor.
        """
        if type(value) not in _KINDS:
            return value
        self.are_there = True
        frame = _frame()
        may_count = frame is not None and "range" in frame.f_code.co_names
        reading = NumberOrigin(self, _place(frame), has_most, may_count=may_count)
        if is_alone and type(value) is int:
            self._whole.append(reading)
        return _KINDS[type(value)](value, reading)

    def made(self, value: Any, *parts: Any, keeps_most: bool) -> Any:
        """Return the result of a calculation with tracked numbers as a tracked number."""
        if type(value) not in _KINDS:
            return value
        of = [part.reading for part in parts if isinstance(part, (DrawnFloat, DrawnInt))]
        for one in of:
            one.is_used = True
        first = of[0]
        reading = NumberOrigin(
            self, first.place, keeps_most and all(one.has_most for one in of), sum(one.reads for one in of),
            may_count=first.may_count,
        )  # fmt: skip
        if type(value) is int and reading.reads == 1:
            self._whole.append(reading)
        return _KINDS[type(value)](value, reading)

    # -------------------------------------------------------------------------------------------- what becomes of them
    def compared(self, answer: bool, reading: NumberOrigin) -> bool:
        """Note a comparison with a number, and return its answer."""
        reading.is_used = True
        place = _place(_frame())
        if not place:
            return answer
        self._compared[place] += 1
        if reading.has_most:
            self.entries[CallHandling.SMALLEST, f"a number read from the card ({reading.place})"] += 1
            return answer
        self.entries[CallHandling.DECIDED, f"a number read from the card ({place})"] += 1
        if self._answers != "otherwise":
            return answer
        return not answer if (on := goes_on()) is None else on

    def branched(self, name: str) -> None:
        """Note that a call of torch read a truth value."""
        if place := _place(_frame()):
            self._compared[place] += 1
            self.entries[CallHandling.DECIDED, f"{name} ({place})"] += 1

    def exhausted(self) -> None:
        """Note that no more numbers are drawn in this step. A loop until convergence compares at one place again and again."""
        place, times = max(self._compared.items(), key=lambda item: item[1], default=("", 0))
        if times >= _LOOPS:
            self.entries[CallHandling.OPEN, f"a loop that ends by a number read from the card ({place})"] += 1
            self._compared.clear()

    def sized(self, name: str, numbers: list[Any]) -> None:
        """Note that a call of torch takes numbers that may be sizes."""
        for number in numbers:
            number.reading.is_used = True
            if number.reading.has_most:
                for kind in (CallHandling.LARGEST, CallHandling.SMALLEST):
                    self.entries[kind, f"a number read from the card ({number.reading.place})"] += 1
            else:
                self.entries[CallHandling.OPEN, f"{name} with a number read from the card ({number.reading.place})"] += 1

    def escaped(self, reading: NumberOrigin) -> None:
        """Note that a number became a plain, untracked one."""
        reading.is_used = True
        frame = _frame()
        if frame is not None and not is_only_shown(frame.f_code, frame.f_lasti):
            self._unfollowed(reading, _place(frame))

    def read_plain(self, *, has_most: bool) -> None:
        """Note that a number was read as a plain one."""
        self.escaped(NumberOrigin(self, "", has_most))

    def settle(self) -> None:
        """Note the integers without any observed use: `range(n)` leaves no trace."""
        for reading in self._whole:
            if not reading.is_used and reading.place and (reading.may_count or not reading.is_shown):
                self._unfollowed(reading, reading.place)
        self._whole.clear()

    def _unfollowed(self, reading: NumberOrigin, place: str) -> None:
        kind = CallHandling.SMALLEST if reading.has_most else CallHandling.UNFOLLOWED
        self.entries[kind, f"a number read from the card ({place})"] += 1


def sizes_in(name: str, args: Any, kwargs: Any) -> list[Any]:
    """Return the numbers among the arguments of a call of torch that may decide a size of its result."""
    bare = name.strip("_")
    if bare in ("getitem", "setitem"):
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        return [*numbers_in([part for part in parts if isinstance(part, slice)])]
    if bare in ("full", "new_full"):
        args = args[: 1 + (bare == "new_full")]
    found = [] if bare in _VALUED else [*numbers_in((args, kwargs))]
    return [number for number in found if isinstance(number, DrawnInt) or bare in _SIZED_BY_FLOATS]


def numbers_in(value: Any) -> Iterator[Any]:
    """Yield the tracked numbers among arguments."""
    if isinstance(value, (DrawnFloat, DrawnInt)):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in () if LEAVES.issuperset(map(type, value)) else value:
            yield from numbers_in(one)
    elif isinstance(value, dict):
        yield from numbers_in([*value.values()])
    elif isinstance(value, slice):
        yield from numbers_in([value.start, value.stop, value.step])


def has_number(values: Iterable[Any]) -> bool:
    """Return whether there is a tracked number among arguments; each call of the job asks."""
    unusual = [value for value in values if type(value) not in LEAVES]
    return bool(unusual) and any(True for _ in numbers_in(unusual))


def spoken(name: str) -> str:
    """Return a call of torch in words, with the job's place: `a condition (train.py:12)`, `bincount (train.py:12)`."""
    place = _place(_frame())
    return f"{SPOKEN.get(name, name)}{f' ({place})' if place else ''}"


def _frame() -> FrameType | None:
    """Return the job's frame that uses a number; None if it decides nothing, in torch's own code."""
    frame = inspect.currentframe()
    assert frame is not None  # CPython has them
    while True:
        name = frame.f_code.co_filename
        if name.endswith(_HARMLESS) and name.startswith(_TORCH):
            return None
        outer = frame.f_back
        if outer is None or not name.startswith(_NOT_THE_JOBS):
            return frame
        frame = outer


def _place(frame: FrameType | None) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else ""


# ------------------------------------------------------------------------------------------------ their classes
class _Drawn:
    """Behavior shared by both kinds."""

    reading: NumberOrigin

    def __bool__(self) -> bool:
        return self.reading.decisions.compared(bool(_plain(self)), self.reading)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return its pickled form: a plain number, which is safe in a checkpoint."""
        torch.serialization.add_safe_globals([float, int])
        return type(_plain(self)), (_plain(self),)

    def __hash__(self) -> int:
        return hash(_plain(self))

    def __int__(self) -> int:
        self.reading.decisions.escaped(self.reading)
        return int(_plain(self))

    def __float__(self) -> float:
        self.reading.decisions.escaped(self.reading)
        return float(_plain(self))

    def __round__(self, digits: int | None = None) -> Any:
        return self._made(round(_plain(self), digits) if digits is not None else round(_plain(self)))

    def __trunc__(self) -> Any:
        return self._made(math.trunc(_plain(self)))

    def __floor__(self) -> Any:
        return self._made(math.floor(_plain(self)))

    def __ceil__(self) -> Any:
        return self._made(math.ceil(_plain(self)))

    def _made(self, value: Any) -> Any:
        return self.reading.decisions.made(value, self, keeps_most=True)


class DrawnFloat(_Drawn, float):  # type: ignore[misc]  # rounding gives a tracked number
    """An unknown float."""

    def __new__(cls, value: Any, reading: NumberOrigin | None = None) -> Any:
        """Return `value` with its origin; without one, which `statistics` calls its type with, the plain number."""
        if reading is None:
            return float(value)
        made = super().__new__(cls, value)
        made.reading = reading
        return made


class DrawnInt(_Drawn, int):  # type: ignore[misc]  # as above
    """An unknown int."""

    def __new__(cls, value: Any, reading: NumberOrigin | None = None) -> Any:
        """Return `value` with its origin; without one, which `statistics` calls its type with, the plain number."""
        if reading is None:
            return int(value)
        made = super().__new__(cls, value)
        made.reading = reading
        return made

    def __str__(self) -> str:
        self.reading.is_shown = True
        return str(_plain(self))

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        self.reading.is_shown = True
        return format(_plain(self), form)


_KINDS: Final[dict[type, Any]] = {float: DrawnFloat, int: DrawnInt}
# Monotone operations in the number read: the largest result comes from the largest or the smallest number.
_MONOTONE: Final = frozenset({"add", "sub", "mul", "truediv", "floordiv", "lshift", "rshift"})
_OF_TWO: Final = frozenset({"add", "mul"})  # also if both were read


def _plain(value: Any) -> Any:
    """Return a number as a plain Python number."""
    if isinstance(value, DrawnFloat):
        return float.__pos__(value)
    return int.__pos__(value) if isinstance(value, DrawnInt) else value


def _calculation(name: str, *, is_reflected: bool) -> Callable[[Any, Any], Any]:
    run = getattr(operator, name)

    def calculate(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        parts = (other, self) if is_reflected else (self, other)
        keeps_most = name in (_OF_TWO if isinstance(other, _Drawn) else _MONOTONE)
        return self.reading.decisions.made(run(*map(_plain, parts)), *parts, keeps_most=keeps_most)

    return calculate


def _of_one(name: str) -> Callable[[Any], Any]:
    run = getattr(operator, name)
    return lambda self: self._made(run(_plain(self)))


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    run = getattr(operator, name)

    def compare(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        answer = run(_plain(self), _plain(other))
        if other is self or not math.isfinite(_plain(other)):  # the job's numbers are assumed to be finite
            return answer
        return self.reading.decisions.compared(bool(answer), self.reading)

    return compare


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(_Drawn, f"__{_name}__", _calculation(_name, is_reflected=False))
    setattr(_Drawn, f"__r{_name}__", _calculation(_name, is_reflected=True))
for _name in ("lshift", "rshift", "and_", "or_", "xor"):
    setattr(DrawnInt, f"__{_name.rstrip('_')}__", _calculation(_name, is_reflected=False))
    setattr(DrawnInt, f"__r{_name.rstrip('_')}__", _calculation(_name, is_reflected=True))
for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
    setattr(_Drawn, f"__{_name}__", _comparison(_name))
for _name in ("neg", "pos", "abs"):
    setattr(_Drawn, f"__{_name}__", _of_one(_name))
