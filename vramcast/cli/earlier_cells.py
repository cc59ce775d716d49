"""Names bound by a notebook's earlier cells: imports, which a cell can repeat, and values, which it cannot."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class EarlierCells:
    """The names that the cells before one have bound.

    Attributes:
        imports: Import statements by the name that they bind; several for a package with its submodules.
        cells: For each other name, the number of the cell that bound it last.
    """

    imports: dict[str, list[str]] = field(default_factory=dict)
    cells: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, sources: Sequence[str]) -> EarlierCells:
        """Return the names bound at the top level of cells, given the sources that ran in each, by cell number."""
        found = cls()
        for number, source in enumerate(sources):
            try:
                tree = ast.parse(source)
            except SyntaxError:  # a cell of another language
                continue
            for statement in tree.body:
                found._note(statement, number)
        return found

    def _note(self, statement: ast.stmt, number: int) -> None:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            for name in _bound(statement):
                self.imports.pop(name, None)
                self.cells[name] = number
            return
        for alias in statement.names:
            one = ast.unparse(_alone(statement, alias))
            name = alias.asname or alias.name.partition(".")[0]
            adds = alias.name == "*" or (isinstance(statement, ast.Import) and alias.asname is None)
            before = self.imports.get(name, []) if adds else []
            self.imports[name] = [*(said for said in before if said != one), one]
            self.cells.pop(name, None)

    def completed(self, cell: str) -> str:
        """Return a cell with the imports that it needs before it, on its first line to keep its line numbers."""
        try:
            used = _used(ast.parse(cell))
        except SyntaxError:  # reported when the job runs
            used = set()
        wanted = [said for name, statements in self.imports.items() if name in used | {"*"} for said in statements]
        first = [said for said in wanted if said.startswith("from __future__")]
        return "; ".join([*first, *(said for said in wanted if said not in first)]) + "\n" + cell

    def missing(self, cell: str) -> dict[str, int]:
        """Return the names that a cell uses and only an earlier cell binds, with that cell's number."""
        try:
            used = _used(ast.parse(cell))
        except SyntaxError:
            return {}
        return {name: self.cells[name] for name in sorted(used & self.cells.keys())}


def _alone(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.stmt:
    if isinstance(statement, ast.Import):
        return ast.Import([alias])
    return ast.ImportFrom(statement.module, [alias], statement.level)


def _bound(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds, without those inside functions and classes."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield tree.name
        return
    if isinstance(tree, ast.Name) and isinstance(tree.ctx, ast.Store):
        yield tree.id
    for inner in ast.iter_child_nodes(tree):
        yield from _bound(inner)


def _used(tree: ast.AST) -> set[str]:
    """Return the names that a cell reads and does not bind."""
    nodes = list(ast.walk(tree))
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    bound |= {
        alias.asname or alias.name.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return read - bound - set(vars(builtins))
