"""Detection of a training that goes on as it is: equal steps, in loops whose conditions have all had their turn.

    for it in range(100_000):
        ...
        if it % 50 == 0: print(loss.item())          its turn came after 50 steps
        if it % 2_000 == 0: evaluate(model)          it has not come yet: 2,000 steps are needed

Conditions in functions that have returned are not examined; equal steps in a row stand for those. A condition on a value that
the loop changes otherwise than by counting, or that a call returns, is unknown: then nothing is said. Conditions inside
`if it % 2_000 == 0` have no turn before that one, and a choice between two numbers changes no memory.

Once passes over the data are cut short, each is to show an evaluation at its end. Then whole passes are compared, and only the
conditions that lead to an evaluation or out of a loop are examined, in the job's own files.
"""

from __future__ import annotations

import argparse
import ast
import math
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from types import FrameType, ModuleType
from typing import Any, Final

from vramcast.tracer.program.evaluations import is_evaluation
from vramcast.tracer.program.loop_lengths import (
    function_of,
    inside,
    job_frames,
    nodes_of,
    statements_around,
    steps_around,
    value_of,
)
from vramcast.tracer.protocol.run_options import LEAST_WATCHED, WATCHED_EVENTS
from vramcast.tracer.protocol.source_places import is_library

_SETTINGS: Final = ("args", "arguments", "config", "options")  # arbitrary: parts of the names of their classes
_PLAIN: Final = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp)
_SAFE_CALLS: Final = ("hasattr", "isinstance")
_LEAST_EQUAL: Final = 8  # arbitrary: of steps with thousands of events each, such as those that accumulate gradients
_Loop = ast.For | ast.While
_Condition = ast.If | ast.IfExp | ast.While | ast.Assert | ast.BoolOp


class Steadiness:
    """The number of equal training steps, or passes over the data, in a row.

    Args:
        totals: Returns the allocator's sums of events and bytes, then the live and the reserved bytes.
    Attributes:
        equal: How many steps were equal to the one before them.
    """

    def __init__(self, totals: Callable[[], tuple[int, int, int, int]]) -> None:
        self.equal = 0
        self._totals = totals
        self._before = (0, 0)
        self._last = (0, 0, 0, 0)

    def step(self) -> bool:
        """Record that a step has ended, and return whether it is time to ask whether anything will change."""
        events, requested, live, reserved = self._totals()
        this = (events - self._before[0], requested - self._before[1], live, reserved)
        self.equal = self.equal + 1 if this == self._last else 0
        self._before, self._last = (events, requested), this
        wanted = min(max(WATCHED_EVENTS // max(this[0], 1), _LEAST_EQUAL), LEAST_WATCHED)
        return self.equal > 0 and self.equal % wanted == 0


def next_change(frame: FrameType | None, done: int, *, is_cut: bool = False) -> float | None:
    """Return the number of steps after which the loops around a step may do something new; None: unknown.

    Args:
        frame: Frame in which the last step ended.
        done: Number of steps made.
        is_cut: Whether passes over the data are cut short.
    """
    total = steps_around(frame, done, is_cut=is_cut)
    nearest = math.inf if total is None else total - done
    is_inside = False
    for one in reversed([*job_frames(frame)]):
        function = function_of(one.f_code)
        loops = [] if function is None else [s for s in statements_around(function, one.f_lineno) if isinstance(s, _Loop)]
        is_inside |= bool(loops)
        if not is_inside:
            continue
        if function is None or (total is None and any(isinstance(loop, ast.For) for loop in loops)):
            return None
        if is_cut and is_library(one.f_code.co_filename):
            if loops:
                return None
            continue
        nearest = min(nearest, _turn([*loops[:1]] or [*function.body], one, done, _leads_on if is_cut else _is_condition))
    return nearest if is_inside and nearest > 0 else None


class _Living(ast.NodeTransformer):
    """Statements of a running function without those that a setting switches off, unless they set it."""

    def __init__(self, frame: FrameType, stored: set[str]) -> None:
        self._frame, self._stored = frame, stored

    def visit_If(self, node: ast.If) -> ast.AST:
        """Return a condition, or one without its branch."""
        parts = node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) else [node.test]
        if any(map(self._is_off, parts)):
            node.test, node.body = ast.Constant(value=False), []
        return self.generic_visit(node)

    def _is_off(self, part: ast.expr) -> bool:
        is_none = isinstance(part, ast.Compare) and len(part.ops) == 1 and ast.unparse(part).endswith(" is not None")
        setting = part.left if isinstance(part, ast.Compare) and is_none else part
        if not isinstance(setting, ast.Attribute) or ast.unparse(setting) in self._stored:
            return False
        if not _is_settings(value_of(setting.value, self._frame)):
            return False
        value = value_of(setting, self._frame)
        return value is None or (value is False and not is_none)


def _is_condition(node: ast.AST) -> bool:
    return isinstance(node, _Condition | ast.Match)


def _leads_on(node: ast.AST) -> bool:
    """Return whether a condition leads to an evaluation or out of a loop."""
    if isinstance(node, ast.If):
        return is_evaluation(node) or any(isinstance(one, (ast.Break, ast.Return)) for one in nodes_of(node.body, None))
    return isinstance(node, (ast.While, ast.Match))


def _turn(body: list[ast.stmt], frame: FrameType, done: int, matters: Callable[[ast.AST], bool]) -> float:
    """Return the number of steps after which all conditions in some statements that matter have had their turn; 0: unknown."""
    nodes = [*nodes_of(body, None)]
    counters = {ast.unparse(n.target) for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)}
    counters |= {name.id for n in nodes if isinstance(n, ast.For) for name in ast.walk(n.target) if isinstance(name, ast.Name)}
    counters |= {*frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]}
    stored = {ast.unparse(n) for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store)}
    nearest = math.inf
    waiting: list[ast.AST] = [_Living(frame, stored).visit(deepcopy(statement)) for statement in body]
    while waiting:
        node = waiting.pop()
        waiting += inside(node)
        if not matters(node) or _chooses_a_number(node, frame):
            continue
        if not isinstance(node, _Condition):
            return 0
        tests = node.values[:-1] if isinstance(node, ast.BoolOp) else [node.test]
        try:
            numbers = [number for test in tests for number in _numbers(test, frame, counters, stored)]
        except ValueError:
            return 0
        turn = math.prod(max(number, 1) for number, is_counted in numbers if not is_counted)
        seen = min((min(number, done) for number, is_counted in numbers if is_counted), default=math.inf)
        if seen <= turn:
            nearest = min(nearest, (turn + 1 - seen) * done / seen) if seen > 0 else 0
            if isinstance(node, ast.If) and _is_equality(node.test):
                del waiting[len(waiting) - len(inside(node)) :]
                waiting += [node.test, *node.orelse]
    return nearest


def _is_equality(test: ast.expr) -> bool:
    """Return whether a condition with a turn ahead is false until then: the others may be true all the time before it."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return isinstance(parts[0], ast.Compare) and [type(op) for op in parts[0].ops] == [ast.Eq]


def _chooses_a_number(node: ast.AST, frame: FrameType) -> bool:
    """Return whether a conditional expression has a number of the host in each branch, made without calls."""
    if not isinstance(node, ast.IfExp):
        return False
    parts = [part for branch in (node.body, node.orelse) for part in ast.walk(branch)]
    values = [value_of(part, frame) for part in parts if isinstance(part, (ast.Name, ast.Attribute, ast.Constant))]
    is_plain = all(isinstance(part, (*_PLAIN, ast.operator, ast.unaryop, ast.expr_context)) for part in parts)
    return is_plain and all(isinstance(value, (int, float)) for value in values)


def _numbers(node: ast.AST, frame: FrameType, counters: set[str], stored: set[str]) -> Iterator[tuple[int, bool]]:
    """Yield the numbers in a condition, and whether each one counts something.

    Raises:
        ValueError: It depends on something else that changes.
    """
    if isinstance(node, (ast.Name, ast.Attribute, ast.Constant)) or (isinstance(node, ast.Call) and _is_length(node)):
        name, value = ast.unparse(node), value_of(node, frame)
        is_counted = name in counters
        is_fixed = not isinstance(node, ast.Attribute) or _is_settings(value_of(node.value, frame))
        if is_counted or name in stored or not is_fixed:
            if isinstance(value, (bool, str)) or (isinstance(value, (int, float)) and not (is_counted and type(value) is int)):
                raise ValueError(name)
            if name in stored and not is_counted:
                raise ValueError(name)
        if type(value) in (int, float):
            yield math.ceil(min(abs(value), sys.maxsize)), is_counted
    elif isinstance(node, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp)):
        for part in ast.iter_child_nodes(node):
            yield from _numbers(part, frame, counters, stored)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SAFE_CALLS:
        return
    elif not isinstance(node, (ast.cmpop, ast.boolop, ast.unaryop, ast.operator)):
        raise ValueError(ast.unparse(node))


def _is_settings(owner: Any) -> bool:
    """Return whether an object's attributes stay as they are."""
    return isinstance(owner, (argparse.Namespace, ModuleType)) or any(
        word in type(owner).__name__.lower() for word in _SETTINGS
    )


def _is_length(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "len"
