"""Detection of numbers that a program only shows: in an argument of `print`, in a log, or in a text.

print(f"loss {float(loss):.3f}")        shown
losses.append(float(loss))              kept to be shown
if float(loss) < 1e-3: break            decides
"""

from __future__ import annotations

import ast
import functools
import itertools
from pathlib import Path
from types import CodeType
from typing import Final

# Calls that show numbers: logs, summary writers, lists of past values.
_SHOWING: Final = frozenset({
    "add_scalar", "append", "critical", "debug", "error", "exception", "format", "info", "log", "log_metric", "log_metrics",
    "print", "report", "set_description", "set_postfix", "set_postfix_str", "warning", "write", "writerow",
})  # fmt: skip
_PASSING: Final = (
    ast.BinOp, ast.UnaryOp, ast.FormattedValue, ast.JoinedStr, ast.Tuple, ast.List, ast.Dict, ast.keyword, ast.Starred,
)  # fmt: skip


def is_only_shown(code: CodeType, instruction: int) -> bool:
    """Return whether the value of a call is only shown; False if the source is missing.

    Args:
        code: Code of the calling function.
        instruction: Offset of the call in it.
    """
    position = next(itertools.islice(code.co_positions(), instruction // 2, None), None)
    return position is not None and position in _shown_calls(code.co_filename)


@functools.lru_cache(maxsize=16)
def _shown_calls(file: str) -> frozenset[tuple[int | None, ...]]:
    """Return the places of the calls in a file with values that are only shown: first and last line, first and last column."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    found: set[tuple[int | None, ...]] = set()

    def visit(node: ast.AST, is_shown: bool) -> None:
        if isinstance(node, ast.Call):
            if is_shown:
                found.add((node.lineno, node.end_lineno, node.col_offset, node.end_col_offset))
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            inner = name in _SHOWING or (is_shown and name in ("float", "int", "round", "str"))
            for child in ast.iter_child_nodes(node):
                visit(child, inner and child is not node.func)
            return
        for child in ast.iter_child_nodes(node):
            visit(child, isinstance(node, ast.JoinedStr) or (is_shown and isinstance(node, _PASSING)))

    visit(tree, False)
    return frozenset(found)
