"""The owners of live blocks, as a tree and as boxes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.estimates.result import Estimate
from vramcast.report.module_tree import Node, boxes, tree_of
from vramcast.tracer.format.trace import Action, Category, Trace

MIB = 2**20


def test_operators_are_leaves_of_modules(make: Callable[..., Estimate]) -> None:
    trace = make().trace
    _, row = trace.peak_live()
    found = boxes(tree_of(trace, row))
    assert [(box.row, box.name, round(box.share * 450)) for box in found] == [
        (0, "all live blocks", 450),
        (1, "layers.0", 350),  # a single child is joined to its parent
        (2, "up", 200),
        (3, "mm", 200),
        (2, "down", 150),
        (3, "mm", 100),
        (3, "mm", 50),
        (1, "no module", 100),
        (2, "no operator", 100),
    ]
    assert [box.look.name for box in found if box.look] == ["activations", "activations", "workspaces", "parameters"]
    assert found[6].title == "layers.0.down mm, workspaces: 50.0 MiB, 11.1%"


def test_empty_trace_has_no_boxes() -> None:
    (box,) = boxes(tree_of(Trace.build({"action": [], "size_bytes": [], "block": []}), -1))
    assert (box.name, box.share) == ("all live blocks", 0.0)


@given(st.lists(st.tuples(st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 10**9)), min_size=1, max_size=60))
def test_boxes_nest_without_overlap(blocks: list[tuple[list[str], int]]) -> None:
    paths = sorted({".".join(path) for path, _ in blocks} - {""})
    trace = Trace.build(
        {
            "action": [Action.ALLOC] * len(blocks),
            "size_bytes": [size for _, size in blocks],
            "block": list(range(len(blocks))),
            "category": [Category.ACTIVATION] * len(blocks),
            "module": [paths.index(".".join(path)) if path else -1 for path, _ in blocks],
            "op": [0] * len(blocks),
        },
        ops=["aten::mm"],
        modules=paths or ["unused"],
    )
    root = tree_of(trace, len(blocks) - 1)
    assert root.size_bytes == int(trace.rounded_bytes().sum())
    found = boxes(root)
    for row in range(1, 7):
        ends = 0.0
        for box in sorted((box for box in found if box.row == row), key=lambda box: box.start):
            assert box.start >= ends - 1e-9
            ends = box.start + box.share
            assert any(
                above.start - 1e-9 <= box.start and ends <= above.start + above.share + 1e-9
                for above in found
                if above.row == row - 1
            )


def test_joins_small_parts() -> None:
    root = Node("all", 1000, None, {n: Node(str(n), 1, Category.INPUT) for n in range(100)} | {"x": Node("x", 900)})
    assert [(box.name, round(box.share * 1000)) for box in boxes(root)] == [("all", 1000), ("x", 900), ("smaller", 100)]
    assert pytest.approx(0.9) == boxes(root)[2].start
