"""The sources of a job's own files and of known trainers, compiled so that loops and conditions can be seen.

    for x in values: ...          for x in __vramcast_loop__(values): ...
    while test: ...               for _ in __vramcast_passes__(): if not test: break; ...
    if step % 500 == 0: ...       if __vramcast_turn__(7, step % 500 == 0): ...

The names are built-in functions while the job runs (`sampled_loops`). Lines stay as they are.
"""

from __future__ import annotations

import ast
import builtins
import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.machinery import SourceFileLoader
from itertools import repeat
from types import CodeType
from typing import Any, Final, NamedTuple, TypeVar

from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.protocol.source_places import is_library, is_ours

LOOP: Final = "__vramcast_loop__"
PASSES: Final = "__vramcast_passes__"
TURN: Final = "__vramcast_turn__"
_TARGET: Final = "__vramcast_pass__"
# Modules of libraries with the loops of a training, by the beginning of their names.
TRAINERS: Final = (
    "transformers.trainer", "trl.trainer", "lightning.pytorch.loops", "pytorch_lightning.loops", "ultralytics.engine",
    "fastai.learner", "mmengine.runner.loops", "detectron2.engine", "composer.trainer", "sentence_transformers.trainer",
    "diffusers.pipelines",  # their denoising
)  # fmt: skip
_COMPILED: Final = ("jit", "compile", "kernel", "script", "graph")  # arbitrary: parts of decorators that read the code
_SIZES: Final = ("min", "max", "int", "round", "floor", "ceil", "bisect", "bisect_right", "bisect_left", "interp", "clip")


Node = TypeVar("Node", bound=ast.AST)


class Expression(NamedTuple):
    """An expression on which the memory of a pass may depend.

    Attributes:
        node: The expression.
        file: Its file.
        is_test: Whether only its truth matters; otherwise it is a number.
        owner: The statement or expression that it decides, if it is a condition.
    """

    node: ast.expr
    file: str
    is_test: bool
    owner: ast.AST | None


expressions: list[Expression] = []


def is_trainer(module: str) -> bool:
    """Return whether a module has the loops of a training."""
    return module.startswith(TRAINERS)


@contextmanager
def shown(loop: Callable[[Any], Any], passes: Callable[[], Any], turn: Callable[[int, Any], Any]) -> Iterator[None]:
    """Compile what is imported or run inside the context in the way that shows its loops and conditions.

    Args:
        loop: Returns the values of a `for` in place of its own.
        passes: Returns one value for each pass of a `while`.
        turn: Is called with the index of an expression in `expressions` and its value, which it returns.
    """
    vars(builtins).update({LOOP: loop, PASSES: passes, TURN: turn})
    vars(runpy)["compile"] = compiled
    import_of_job = ReplacedAttribute(SourceFileLoader, "get_code", _code)
    try:
        yield
    finally:
        import_of_job.remove()
        del vars(runpy)["compile"]
        # Functions of the job may still run, in threads or at exit.
        unseen = {LOOP: lambda values: values, PASSES: lambda: repeat(None), TURN: lambda number, value: value}
        vars(builtins).update(unseen)


def _code(original: Any) -> Any:
    def get_code(loader: SourceFileLoader, name: str) -> Any:
        path = loader.get_filename(name)
        if is_ours(path) or (is_library(path) and not is_trainer(name)):
            return original(loader, name)
        return compiled(loader.get_data(path), path, "exec")

    return get_code


def compiled(source: Any, path: Any, mode: str) -> CodeType:
    """Return the code of a source, as `compile` does."""
    code: CodeType
    if hasattr(builtins, LOOP):
        try:
            tree = _Shown(str(path)).visit(ast.parse(source, path, mode))
            code = compile(ast.fix_missing_locations(tree), path, mode, dont_inherit=True)
            return code
        except (SyntaxError, ValueError, RecursionError):  # the usual error comes from the usual place
            pass
    code = compile(source, path, mode, dont_inherit=True)
    return code


class _Shown(ast.NodeTransformer):
    """A module with calls of the built-in functions; what is compiled otherwise is left alone, and so are annotations."""

    def __init__(self, file: str) -> None:
        self._file = file

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = _call(LOOP, node.iter, node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        if not node.is_async:
            node.iter = _call(LOOP, node.iter, node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        test = self._turn(node.test, node)
        node.body = [self.visit(one) for one in node.body]
        if node.orelse:
            node.orelse = [self.visit(one) for one in node.orelse]
            return node
        end = ast.If(_at(ast.UnaryOp(ast.Not(), test), node.test), [_at(ast.Break(), node.test)], [])
        is_endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        body = node.body if is_endless else [_at(end, node.test), *node.body]
        return _at(ast.For(_at(ast.Name(_TARGET, ast.Store()), node), _call(PASSES, node.test), body, []), node)

    def visit_If(self, node: ast.If) -> ast.AST:
        node.test = self._turn(node.test, node)
        node.body, node.orelse = [self.visit(one) for one in node.body], [self.visit(one) for one in node.orelse]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        test, node.body, node.orelse = self._turn(node.test, node), self.visit(node.body), self.visit(node.orelse)
        node.test = test
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return self._turn(node, None)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.ctx, ast.Load) and not isinstance(node.slice, (ast.Constant, ast.Slice, ast.Tuple)):
            return self._turn(node, None, is_test=False)
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return self._size(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return self._size(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        decorators = " ".join(ast.unparse(one) for one in node.decorator_list)
        if not any(word in decorators for word in _COMPILED):
            node.body = [self.visit(one) for one in node.body]
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_Match(self, node: ast.Match) -> ast.AST:
        for case in node.cases:
            case.body = [self.visit(one) for one in case.body]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        # Loops of a class's own body train nothing.
        node.body = [self.visit(one) if isinstance(one, (ast.FunctionDef, ast.ClassDef)) else one for one in node.body]
        return node

    def _size(self, node: ast.expr) -> ast.expr:
        if any(map(_makes_few, parts_of(node))):
            return self._turn(node, None, is_test=False)
        self.generic_visit(node)
        return node

    def _turn(self, node: ast.expr, owner: ast.AST | None, *, is_test: bool = True) -> ast.expr:
        """Return an expression that announces itself."""
        if isinstance(node, ast.Constant):
            return node
        expressions.append(Expression(node, self._file, is_test, owner))
        number = _at(ast.Constant(len(expressions) - 1), node)
        inside = any(isinstance(one, (ast.comprehension, ast.Lambda, ast.NamedExpr)) for one in ast.walk(node))
        again = self.generic_visit(deepcopy(node)) if inside else node
        assert isinstance(again, ast.expr)
        return _call(TURN, node, number, again)


def parts_of(node: ast.expr) -> list[ast.expr]:
    """Return the parts of an expression that is computed from its parts alone, with itself; empty for any other."""
    if isinstance(node, ast.BinOp):
        return [node, *parts_of(node.left), *parts_of(node.right)]
    if isinstance(node, ast.UnaryOp):
        return [node, *parts_of(node.operand)]
    if isinstance(node, ast.Call) and name_of(node.func) in _SIZES and not node.keywords:
        return [node, *(part for one in node.args for part in parts_of(one))]
    return []


def _makes_few(node: ast.expr) -> bool:
    """Return whether an operation makes few numbers of many."""
    return isinstance(node, ast.Call) or (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Mod)))


def name_of(node: ast.expr) -> str:
    """Return the last part of a name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _call(name: str, at: ast.AST, *arguments: ast.expr) -> ast.Call:
    return _at(ast.Call(_at(ast.Name(name, ast.Load()), at), [*arguments], []), at)


def _at(node: Node, place: ast.AST) -> Node:
    return ast.copy_location(node, place)
