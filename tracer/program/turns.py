"""The turns of a program: conditions and sizes in its own code, and the pass of a loop in which each will change.

    if step % 5_000 == 4_999: keep(model)         `step` grew by 1 in each of three passes: the turn comes in pass 4,999
    seq = min(64 * (1 + step // 200), 1_024)      16 values, one after the other

The numbers in an expression are read when it is evaluated (`loop_sources`). If each of them grows by a constant from pass to
pass, or stays as it is, NumPy computes the expression for all later passes at once.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import itertools
import math
import operator
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramcast.tracer.program.loop_sources import expressions, name_of
from vramcast.tracer.protocol.source_places import SourceLine

UNKNOWN: Final = object()
FAR: Final = 1 << 20  # arbitrary: passes that are looked ahead; 8 MB for each number
_MOST_VALUES: Final = 24  # arbitrary: values of a size that each get a pass; of more, the extremes do
_TWICE: Final = 2  # arbitrary: what happens once may allocate something for good; the second time tells
_POINTS: Final = 3  # spec: the least number of points that shows a line
_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Div: operator.truediv, ast.Pow: operator.pow, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.USub: operator.neg,
    ast.UAdd: operator.pos, ast.Not: np.logical_not, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.In: lambda value, values: np.isin(value, [*values]), ast.NotIn: lambda value, values: ~np.isin(value, [*values]),
    ast.Is: lambda value, other: value is other, ast.IsNot: lambda value, other: value is not other,
    ast.And: np.logical_and, ast.Or: np.logical_or, ast.RShift: operator.rshift, ast.LShift: operator.lshift,
}  # fmt: skip
# Functions without a side effect, by the last part of their names.
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "min": lambda *values: functools.reduce(np.minimum, values), "max": lambda *values: functools.reduce(np.maximum, values),
    "int": lambda value: np.trunc(value).astype(np.int64), "float": lambda value: value * 1.0, "abs": np.abs,
    "bool": lambda value: np.not_equal(value, 0), "round": np.round, "floor": np.floor, "ceil": np.ceil, "sqrt": np.sqrt,
    "log": np.log, "log2": np.log2, "exp": np.exp, "sin": np.sin, "cos": np.cos, "pow": np.power, "interp": np.interp,
    "bisect": lambda table, value: np.searchsorted(table, value, "right"),
    "bisect_right": lambda table, value: np.searchsorted(table, value, "right"),
    "bisect_left": np.searchsorted, "searchsorted": np.searchsorted, "clip": np.clip,
}  # fmt: skip
_SCALARS: Final = (int, float, bool, str, type(None))
_TABLES: Final = (list, tuple, set, frozenset, range)
_SIZED: Final = (list, tuple, dict, set, str, deque, np.ndarray)
_LONGEST: Final = 10_000  # arbitrary: numbers of a table, and noted values
# spec: functions of random, numpy.random and torch that draw a number
_RANDOM: Final = frozenset(
    ("random", "rand", "randint", "randrange", "uniform", "choice", "normal", "integers", "gauss", "randn")
)
_OURS: Final = 4  # spec: references to a variable of the caller, of `forget`, of `getrefcount` and of the frame
_MOST_READINGS: Final = 64  # arbitrary: readings of an expression in one pass
Values = tuple[Any, ...]
Array = npt.NDArray[Any]


@dataclass(eq=False)
class Turn:
    """An expression of the job on which the memory of a pass may depend.

    Attributes:
        node: The expression.
        file: Its file.
        is_test: Whether only its truth matters; otherwise it is a number.
        owner: The statement or expression that it decides.
        leaves: The parts of it that are read, by their text.
        seen: How often each of its values was seen.
        fine: By leaf, its growth in a pass of the innermost loop that changes it.
        is_lasting: Whether the passes after its change are others than those before; None: unknown.
        kept: Containers and the items that they gain in a pass in which it is true, beyond those of other passes.
    """

    node: ast.expr
    file: str
    is_test: bool
    owner: ast.AST | None
    leaves: dict[str, ast.expr] = field(default_factory=dict)
    seen: Counter[Any] = field(default_factory=Counter)
    fine: dict[str, Any] = field(default_factory=dict)
    kept: tuple[Any, dict[int, int]] | None = None
    is_lasting: bool | None = None

    def __post_init__(self) -> None:
        self.leaves = {ast.unparse(one): one for one in _leaves(self.node)}

    def __str__(self) -> str:
        return str(SourceLine(self.file, self.node.lineno, ""))

    @property
    def text(self) -> str:
        """Return the expression as text."""
        return ast.unparse(self.node)

    def note(self, value: Any) -> None:
        """Note one of its values."""
        if isinstance(value, np.ndarray | np.generic) and value.ndim == 0:
            value = value.item()
        if type(value) in _SCALARS and len(self.seen) < _LONGEST:
            self.seen[bool(value) if self.is_test else value] += 1

    @property
    def is_drawn(self) -> bool:
        """Return whether it depends on a random number, and chooses between numbers of which only one was seen."""
        if not self.is_test or self.owner is None or len(self.seen) != 1:
            return False
        words = {name_of(one) for leaf in self.leaves.values() for one in ast.walk(leaf) if isinstance(one, ast.expr)}
        return not words.isdisjoint(_RANDOM) and any(map(_is_size, _choices(self.owner)))

    def value(self, values: Values) -> Any:
        """Return its value for values of its leaves; `UNKNOWN` if one of them is unknown."""
        return self._evaluated(dict(zip(self.leaves, values, strict=True)))

    def _evaluated(self, names: dict[str, Any]) -> Any:
        if any(value is UNKNOWN for value in names.values()):
            return UNKNOWN
        try:
            with np.errstate(all="ignore"):
                found = _evaluated(self.node, names)
                return np.asarray(found, bool) if self.is_test else np.asarray(found)
        except Exception:  # anything that numbers cannot do
            return UNKNOWN

    def ahead(self, series: deque[Values], passes: int) -> tuple[Array, int] | None:
        """Return its values after the last of some passes, and how many of them belong to a pass.

        Args:
            series: The values of its leaves at the ends of the last passes.
            passes: Number of later passes.

        Returns:
            The values of the last pass, then those of the later ones; None: it is unknown, or nothing moves.
        """
        moves: dict[str, Any] = {}
        names: dict[str, Any] = {}
        for leaf, points in zip(self.leaves, zip(*series, strict=True), strict=True):
            growth = _growth(points)
            if growth is None:
                return None
            names[leaf] = points[-1]
            if growth:
                moves[leaf] = growth
        if not moves:
            return None
        finer = {growth / (self.fine.setdefault(leaf, growth) or 1) for leaf, growth in moves.items()}
        parts = int(ratio) if len(finer) == 1 and (ratio := finer.pop()) >= 1 and ratio == int(ratio) else 1
        n = min(passes, max(FAR // parts, 1)) * parts
        names |= {
            leaf: names[leaf] + growth / parts * np.arange(n + 1)
            if parts > 1 and growth % parts
            else names[leaf] + (growth // parts if parts > 1 else growth) * np.arange(n + 1)
            for leaf, growth in moves.items()
        }
        found = self._evaluated(names)
        return None if found is UNKNOWN else (np.broadcast_to(found, n + 1), parts)

    def next_new(self, series: deque[Values], passes: int) -> int | None:
        """Return after how many passes its next value comes that was not seen often enough; None: none is known."""
        ahead = self.ahead(series, passes)
        if ahead is None:
            return None
        values, parts = ahead[0][1:], ahead[1]
        if self.is_test:
            always = self.is_lasting or self.ends_loop
            wanted = [value for value in (True, False) if always or self.seen[value] < _TWICE]
            wanted = [value for value in wanted if not always or value != self.is_true(series[-1])]
            places = [int(np.argmax(values == value)) for value in wanted if (values == value).any()]
        elif values.dtype.kind in "iuf" and len(distinct := np.unique(values)) <= _MOST_VALUES:
            places = [int(np.argmax(values == value)) for value in distinct if not self.seen[value.item()]]
        elif values.dtype.kind in "iuf":
            beyond = max((one for one in self.seen if isinstance(one, (int, float))), default=-math.inf)
            places = [int(np.argmax(values))] if values.max() > beyond else []
        else:
            return None
        return min(places) // parts + 1 if places else None

    def is_true(self, values: Values) -> bool:
        """Return whether it is known to be true."""
        value = self.value(values)
        return value is not UNKNOWN and value.ndim == 0 and bool(value)

    @functools.cached_property
    def ends_loop(self) -> bool:
        """Return whether it ends a loop: a jump past it would never meet it again."""
        parts = ast.walk(self.owner) if isinstance(self.owner, ast.If) else ()
        return isinstance(self.owner, ast.While) or any(isinstance(one, (ast.Break, ast.Return, ast.Raise)) for one in parts)

    def changes(self, series: deque[Values]) -> bool:
        """Return whether it is a condition that became true or false in the last pass."""
        return self.is_test and self.is_true(series[-1]) != self.is_true(series[-2])

    def has_news(self, series: deque[Values]) -> bool:
        """Return whether its last values are too few to know it, or a change among them that is still rare."""
        is_known = not self.is_test or min(self.seen[True], self.seen[False]) > _POINTS
        return len(series) < _POINTS or (not is_known and len({self.is_true(one) for one in series}) > 1)

    def hits(self, series: deque[Values], passes: int) -> int:
        """Return how often it is true in the next passes."""
        ahead = self.ahead(series, passes)
        return int(ahead[0][1:].sum()) if ahead is not None else 0


def shifted(series: deque[Values], passes: int) -> deque[Values]:
    """Return values of a turn as they are some passes later, if each of them grows by a constant or stays."""
    columns = [(points, _growth(points)) for points in zip(*series, strict=True)]
    moved = [[point + growth * passes for point in points] if growth else points for points, growth in columns]
    return deque(zip(*moved, strict=True) if moved else series, maxlen=series.maxlen)


def _growth(points: tuple[Any, ...]) -> Any:
    """Return the constant growth of a value from pass to pass, 0 for anything that stays; None: it changes otherwise."""
    if all(type(one) in (int, float) for one in points) and len(points) >= _POINTS:
        steps = [after - before for before, after in itertools.pairwise(points)]
        return steps[0] if all(math.isclose(step, steps[0], rel_tol=1e-9) for step in steps) else None
    try:
        return 0 if all(one is points[0] or bool(one == points[0]) for one in points) else None
    except Exception:  # the job's own comparison
        return None


class Turns:
    """All turns of a job, with the values of their leaves where they were read last.

    Attributes:
        now: By turn, the number of its last reading and the values of its leaves.
        readings: Number of readings.
    """

    def __init__(self) -> None:
        self.now: dict[Turn, tuple[int, Values]] = {}
        self.readings = 0
        self._known: dict[int, tuple[Turn, ...]] = {}
        self._quota: Counter[int] = Counter()

    def begin_pass(self) -> None:
        """Read all turns anew."""
        self._quota.clear()

    def move(self, values: Mapping[Turn, Values]) -> None:
        """Replace the values of turns that came in this pass, after a jump."""
        self.now |= {turn: (self.now[turn][0], one) for turn, one in values.items()}

    def come(self, number: int, value: Any) -> Any:
        """Read the leaves of an expression of `expressions` that the caller has evaluated, and return its value."""
        if is_compiling():
            return value
        self._quota[number] += 1
        if self._quota[number] > _MOST_READINGS:
            return value
        if number not in self._known:
            self._known[number] = tuple(_turns(*expressions[number]))
        frame = sys._getframe(1)
        names = frame.f_locals
        self.readings += 1
        for turn in self._known[number]:
            values = tuple(value_in(leaf, names, frame.f_globals) for leaf in turn.leaves.values())
            self.now[turn] = self.readings, values
            turn.note(value if turn is self._known[number][0] else turn.value(values))
        forget(frame, names)
        return value


def _choices(owner: ast.AST) -> list[ast.expr]:
    """Return what a condition chooses between: the branches of an expression, or values that statements assign."""
    if isinstance(owner, ast.IfExp):
        return [owner.body, owner.orelse]
    statements = [*getattr(owner, "body", ()), *getattr(owner, "orelse", ())]
    return [one.value for one in statements if isinstance(one, (ast.Assign, ast.AugAssign))]


def _is_size(node: ast.expr) -> bool:
    """Return whether an expression is computed without calls and from an integer above 1."""
    parts = [*ast.walk(node)]
    numbers = [one.value for one in parts if isinstance(one, ast.Constant) and type(one.value) is int]
    return any(one > 1 for one in numbers) and not any(isinstance(one, ast.Call) for one in parts)


def is_compiling() -> bool:
    """Return whether torch.compile runs this code."""
    import torch  # the stand-ins come before it

    return torch.compiler.is_compiling()


def forget(frame: FrameType, names: Any) -> None:
    """Drop the variables of a running function that CPython before 3.13 keeps beside it, as they were when they were read."""
    is_copy = type(names) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED  # otherwise the variables themselves
    if is_copy and sys.getrefcount(names) <= _OURS:  # otherwise the job has called `locals()`
        names.clear()


# ------------------------------------------------------------------------------------------------ expressions
def _turns(node: ast.expr, file: str, is_test: bool, owner: ast.AST | None) -> Iterator[Turn]:
    """Yield the turns of an expression: itself, and each comparison in it."""
    yield Turn(node, file, is_test, owner)
    if not is_test or isinstance(node, ast.Compare):
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Compare):
            yield Turn(part, file, True, None)


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Constant):
        return
    inside: list[ast.expr] | None = None
    if isinstance(node, ast.BoolOp):
        inside = node.values
    elif isinstance(node, ast.Compare):
        inside = [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp):
        inside = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        inside = [node.operand]
    elif isinstance(node, ast.IfExp):
        inside = [node.test, node.body, node.orelse]
    elif isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Slice, ast.Constant)):
        inside = [node.value, node.slice]
    elif isinstance(node, ast.Call) and name_of(node.func) in _FUNCTIONS and not node.keywords:
        inside = node.args
    if inside is None:
        yield node
    else:
        for one in inside:
            yield from _leaves(one)


def _evaluated(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if (text := ast.unparse(node)) in names:
        return names[text]

    def of(one: ast.expr) -> Any:
        return _evaluated(one, names)

    if isinstance(node, ast.BoolOp):
        return functools.reduce(_OPERATORS[type(node.op)], map(of, node.values))
    if isinstance(node, ast.Compare):
        sides = [of(one) for one in (node.left, *node.comparators)]
        pairs = zip(node.ops, sides[:-1], sides[1:], strict=True)
        return functools.reduce(np.logical_and, (_OPERATORS[type(op)](left, right) for op, left, right in pairs))
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](of(node.left), of(node.right))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](of(node.operand))
    if isinstance(node, ast.IfExp):
        return np.where(of(node.test), of(node.body), of(node.orelse))
    if isinstance(node, ast.Subscript):
        table, index = of(node.value), of(node.slice)
        return np.asarray(table)[index] if isinstance(index, np.ndarray) else table[index]
    assert isinstance(node, ast.Call)
    return _FUNCTIONS[name_of(node.func)](*map(of, node.args))


def value_in(node: ast.expr, names: Mapping[str, Any], others: Mapping[str, Any]) -> Any:
    """Return the value of a name, an attribute or a length, without running code of the job; or `UNKNOWN`.

    Args:
        node: The expression.
        names: The variables of its function.
        others: Those of its module.
    """
    if isinstance(node, ast.Call) and name_of(node.func) == "len" and len(node.args) == 1:
        owner = _raw(node.args[0], names, others)
        return len(owner) if isinstance(owner, _SIZED) else UNKNOWN
    if isinstance(node, (ast.Tuple, ast.List)):
        return _plain([value_in(one, names, others) for one in node.elts])
    return _plain(_raw(node, names, others))


def _raw(node: ast.expr, names: Mapping[str, Any], others: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id, others.get(node.id, UNKNOWN))
    if isinstance(node, ast.Attribute):
        return attribute_of(_raw(node.value, names, others), node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = _raw(node.value, names, others)
        try:
            return owner[node.slice.value] if type(owner) in (list, tuple, dict) else UNKNOWN
        except LookupError:
            return UNKNOWN
    return UNKNOWN


def attribute_of(owner: Any, name: str) -> Any:
    """Return an attribute or a property of an object; `UNKNOWN` for one that other code computes."""
    try:
        own = getattr(owner, "__dict__", {})
        if name in own:
            return own[name]
        found = next(vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind))
        if isinstance(found, property) or type(found).__name__ == "member_descriptor":  # of `__slots__`
            return getattr(owner, name)
    except Exception:  # the job's own code
        return UNKNOWN
    return UNKNOWN if hasattr(type(found), "__get__") else found


def _plain(value: Any) -> Any:
    """Return a value that an expression may be computed from, without the objects of the job: they live as long as it says."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, (np.generic, enum.IntEnum)):
        return value.item() if isinstance(value, np.generic) else int(value)
    if kind is np.ndarray and value.ndim == 1:
        value = value[: _LONGEST + 1].tolist()
    if isinstance(value, _TABLES) and len(value) <= _LONGEST and all(type(one) in _SCALARS for one in value):
        return tuple(value)
    if kind is dict and len(value) <= _LONGEST and all(type(one) in _SCALARS for one in (*value, *value.values())):
        return dict(value)
    return UNKNOWN
