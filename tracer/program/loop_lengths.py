"""The total number of steps of a training, read from the running loops: their source and their variables.

    for epoch in range(args.epochs):            10 passes
        for x, y in loader:                     of len(loader) batches, each with a step
            ...
            optimizer.step()

Trainers report it themselves. Uncertain lengths are unknown: those of a `while`, a loop that may break, and an iterator
without a length. If a pass begins with a new container, kept memory may be freed with the old one: then only the inner loop
counts.
"""

from __future__ import annotations

import ast
import functools
import importlib
import linecache
import operator
import os
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Final

from vramcast.tracer.program.trainers import steps_of
from vramcast.tracer.protocol.source_places import is_ours

_OPERATORS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_BARS: Final = ("tqdm", "track", "progress", "progress_bar", "ProgressBar")  # spec: tqdm, rich, fastprogress
_CONTAINERS: Final = ("list", "dict", "set", "deque", "defaultdict", "OrderedDict")
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module | ast.ClassDef


def steps_around(frame: FrameType | None, done: int, *, is_cut: bool = False) -> int | None:
    """Return the total number of training steps of the loops around a frame; None if unknown.

    Args:
        frame: Frame in which the last step ended.
        done: Number of steps made.
        is_cut: Whether passes over the data are ended early: the steps of all loops are extrapolated from the place reached.
            A `break` is no obstacle then, because its condition is examined (`steadiness`), nor is a new container.
    """
    frames = list(job_frames(frame))
    said = None if is_cut else next(filter(None, map(steps_of, frames)), None)
    return said if said is not None else _steps(frames, done, is_cut)


def job_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames that are neither ours nor torch's: optimizers call hooks in loops."""
    torch = os.path.join(os.path.dirname(importlib.import_module("torch").__file__ or ""), "")
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_ours(file) and not file.startswith(torch):
            yield frame
        frame = frame.f_back


def _steps(frames: list[FrameType], done: int, is_cut: bool) -> int | None:
    total, at = 1, 0  # total iterations of all loops, and those begun before this one
    is_found = is_reset = False
    used: set[str] = set()  # names in the innermost loop examined so far
    is_placed = is_plain = True  # whether variables show the loops' positions; whether each iteration makes a step
    for frame in frames:
        function = function_of(frame.f_code)
        path = [] if function is None or is_reset else statements_around(function, frame.f_lineno)
        for place, statement in reversed([*enumerate(path)]):
            if isinstance(statement, (ast.If, ast.Try, ast.ExceptHandler)):
                is_plain &= is_found
            if isinstance(statement, (ast.While, ast.AsyncFor)):
                return None
            if not isinstance(statement, ast.For) or is_reset:
                continue
            length = _length(statement.iter, frame)
            if length is None or (not is_cut and _may_break(statement)):
                return None
            index = _index(statement, frame)
            is_found, is_placed = True, is_placed and index is not None
            at, total = at + total * (index or 0), total * length
            outer = next((one for one in reversed(path[:place]) if isinstance(one, (ast.For, ast.While))), None)
            used = _names(statement.body)
            is_reset = not is_cut and outer is not None and not used.isdisjoint(_made_anew(outer.body, statement))
            if is_reset:
                break
        if is_found and not is_cut and isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_reset |= not used.isdisjoint(_made_anew(function.body, None))
    if not is_found:
        return None
    if is_placed and not is_reset:  # steps and iterations differ in number
        per_step, per_iteration = round((at + 1) / done), round(done / (at + 1))
        return total // per_step if per_step else total * per_iteration
    return total if is_plain and not is_cut else None


@functools.cache
def function_of(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Module | None:
    """Return the function or module that a code object was compiled from; None if its source is unknown."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return None
    if code.co_name == "<module>":
        return tree
    named = (
        one for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and one.name == code.co_name
    )
    return next((one for one in named if code.co_firstlineno in (one.lineno, *(d.lineno for d in one.decorator_list))), None)


def statements_around(function: ast.AST, line: int) -> list[ast.AST]:
    """Return the statements around a line of a function, outermost first, without those of nested functions."""
    path: list[ast.AST] = []
    inner: ast.AST | None = function
    while inner is not None:
        path.append(inner)
        inner = next(
            (one for one in ast.iter_child_nodes(inner)
             if isinstance(one, (ast.stmt, ast.ExceptHandler)) and not isinstance(one, _Function)
             and one.lineno <= line <= (one.end_lineno or one.lineno)), None,
        )  # fmt: skip
    return path


def nodes_of(body: list[ast.stmt], without: ast.stmt | None) -> Iterator[ast.AST]:
    """Yield all nodes of some statements, except those of nested functions and of the statement `without`."""
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        if node is without:
            continue
        yield node
        waiting += inside(node)


def inside(node: ast.AST) -> list[ast.AST]:
    """Return the nodes in a node, except nested functions."""
    return [one for one in ast.iter_child_nodes(node) if not isinstance(one, _Function)]


def _may_break(loop: ast.For) -> bool:
    """Return whether a loop may end before its iterator: by a `break` of its own, or a `return`."""
    waiting: list[ast.AST] = [*loop.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Break, ast.Return)):
            return True
        inner = [one for one in ast.iter_child_nodes(node) if not isinstance(one, _Function)]
        if isinstance(node, (ast.For, ast.While, ast.AsyncFor)):  # its breaks are its own
            inner = [one for one in nodes_of(node.body, None) if isinstance(one, ast.Return)]
        waiting += inner
    return False


def _names(body: list[ast.stmt]) -> set[str]:
    return {node.id for node in nodes_of(body, None) if isinstance(node, ast.Name)}


def _made_anew(body: list[ast.stmt], without: ast.stmt | None) -> set[str]:
    """Return the names to which statements assign empty containers or None, and those of containers that they clear."""
    found: set[str] = set()
    for node in nodes_of(body, without):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_empty(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Attribute) and node.attr in ("clear", "reset"):
            targets = [node.value]
        else:
            continue
        found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return found


def _is_empty(value: ast.expr | None) -> bool:
    if isinstance(value, (ast.List, ast.Tuple)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.Constant):
        return value.value is None
    return isinstance(value, ast.Call) and _name(value.func) in _CONTAINERS


def _index(loop: ast.For, frame: FrameType) -> int | None:
    """Return the number of completed iterations of a loop over `range` or `enumerate`, from its variable."""
    target, iterator = loop.target, _unwrapped(loop.iter)
    if isinstance(target, ast.Tuple) and isinstance(iterator, ast.Call) and _name(iterator.func) == "enumerate":
        target, begin, stride = target.elts[0], value_of(iterator.args[1], frame) if len(iterator.args) > 1 else 0, 1
        if iterator.keywords:
            return None
    elif isinstance(iterator, ast.Call) and _name(iterator.func) in ("range", "trange"):
        counted = _range(iterator, frame)
        if counted is None:
            return None
        begin, stride = counted.start, counted.step
    else:
        return None
    value = value_of(target, frame)
    return (value - begin) // stride if isinstance(value, int) and isinstance(begin, int) else None


def _unwrapped(node: ast.expr) -> ast.expr:
    """Return the iterable inside a progress bar."""
    while isinstance(node, ast.Call) and _name(node.func) in _BARS and node.args:
        node = node.args[0]
    return node


def _length(node: ast.expr, frame: FrameType) -> int | None:
    """Return the number of values of the iterator that an expression creates; None if unknown."""
    node = _unwrapped(node)
    if isinstance(node, ast.Call):
        name = _name(node.func)
        if name in ("range", "trange"):
            counted = _range(node, frame)
            return None if counted is None else len(counted)
        if name in ("enumerate", "reversed", "list", "iter") and node.args:
            return _length(node.args[0], frame)
        if name == "zip" and node.args:
            lengths = [_length(one, frame) for one in node.args]
            return None if None in lengths else min(one for one in lengths if one is not None)
        return None
    try:
        return len(value_of(node, frame))
    except Exception:  # a length is the user's code
        return None


def _range(node: ast.Call, frame: FrameType) -> range | None:
    values = [value_of(one, frame) for one in node.args]
    return range(*values) if values and all(isinstance(one, int) for one in values) else None


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def value_of(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of a name, an attribute, a constant, a length or a sum of them; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, (ast.List, ast.Tuple)):
        return node.elts
    try:
        if isinstance(node, ast.Attribute):
            return getattr(value_of(node.value, frame), node.attr)
        if isinstance(node, ast.Call) and _name(node.func) in ("len", "int") and len(node.args) == 1:
            value = value_of(node.args[0], frame)
            return len(value) if _name(node.func) == "len" else int(value)
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](value_of(node.left, frame), value_of(node.right, frame))
    except Exception:  # an attribute and a length are the user's code
        return None
    return None
