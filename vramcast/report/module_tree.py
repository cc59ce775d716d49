"""A tree of the live blocks at the peak: modules by path, with the requesting operators below them.

all
|-- transformer          a module is joined with its only child: `transformer.h`
|   |-- h.0
|   |   |-- attn
|   |   |   `-- mm (activations)             a leaf: one operator and one category, which sets its colour
`-- no module
    `-- to (parameters)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from vramcast.core.text import printable
from vramcast.core.units import gib
from vramcast.simulator.curves import groups_at
from vramcast.tracer.format.trace import Category, Trace
from vramcast.views.style import LOOKS, Look

NO_MODULE: Final = "no module"
_LEAST_SHARE: Final = 0.004  # arbitrary: share of all bytes; smaller boxes are a few pixels wide and are drawn as one
_MOST_DEPTH: Final = 7  # arbitrary: rows of the drawing; deeper nodes are summed in their ancestor
_NAME_LIMIT: Final = 60  # arbitrary: characters


@dataclass(slots=True)
class Node:
    """A module, or the blocks of one category requested by an operator in it."""

    name: str
    size_bytes: int = 0
    category: Category | None = None
    children: dict[object, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Box:
    """A node in the drawing: start and width as shares of the drawing, row, look (None for a module) and tooltip."""

    name: str
    start: float
    share: float
    row: int
    look: Look | None
    title: str


def tree_of(trace: Trace, row: int) -> Node:
    """Return the tree of the blocks alive right after event `row`; none are alive after row -1."""
    root = Node("all live blocks")
    for group in groups_at(trace, row) if row >= 0 else ():
        node = root
        node.size_bytes += group.size_bytes
        for part in group.module.split(".") if group.module else (NO_MODULE,):
            node = node.children.setdefault(part, Node(printable(part, _NAME_LIMIT)))
            node.size_bytes += group.size_bytes
        leaf = node.children.setdefault(
            (group.op, group.category), Node(printable(group.op.removeprefix("aten::"), _NAME_LIMIT) or "no operator")
        )
        leaf.size_bytes += group.size_bytes
        leaf.category = group.category
    return root


def boxes(root: Node) -> list[Box]:
    """Return the boxes of a tree, the root first, each below its parent; children by size."""
    return list(_boxes(root, root.name, max(root.size_bytes, 1), 0, 0))


def _boxes(node: Node, path: str, all_bytes: int, start_bytes: int, row: int) -> Iterator[Box]:
    """Yield the boxes of a node and its descendants; `path` is the node's full name."""
    while len(node.children) == 1 and row:
        (child,) = node.children.values()
        if child.category is not None:
            break
        child_path = f"{path}.{child.name}"
        node = Node(f"{node.name}.{child.name}", child.size_bytes, None, child.children)
        path = child_path
    look = LOOKS[node.category] if node.category is not None else None
    what = f"{path}, {look.name}" if look is not None else path
    title = f"{what}: {gib(node.size_bytes)}, {node.size_bytes / all_bytes:.1%}"
    yield Box(node.name, start_bytes / all_bytes, node.size_bytes / all_bytes, row, look, title)
    if row + 1 >= _MOST_DEPTH:
        return
    small_bytes = 0
    for child in sorted(node.children.values(), key=lambda child: -child.size_bytes):
        if child.size_bytes < _LEAST_SHARE * all_bytes:
            small_bytes += child.size_bytes
            continue
        separator = " " if child.category is not None else "."
        yield from _boxes(child, f"{path}{separator}{child.name}" if row else child.name, all_bytes, start_bytes, row + 1)
        start_bytes += child.size_bytes
    if small_bytes >= _LEAST_SHARE * all_bytes:
        yield from _boxes(Node("smaller", small_bytes), f"{path}, smaller ones", all_bytes, start_bytes, row + 1)
