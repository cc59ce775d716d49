"""The memory of a job without the workspaces of its convolutions."""

from __future__ import annotations

from vramcast.core.units import MIB
from vramcast.learner.workspaces import settled_reserved, without_workspaces
from vramcast.tracer.format.trace import Action, Category, Trace


def searching(*, workspace_mib: int) -> Trace:
    """Return two steps of a job that keeps 40 MiB; its first step also takes a block of 60 MiB that no workspace explains."""
    columns = {
        "action": [Action.ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.ALLOC],
        "size_bytes": [40 * MIB, 60 * MIB, 60 * MIB, 60 * MIB, workspace_mib * MIB],
        "block": [0, 1, 1, 1, 4],
        "step": [0, 0, 0, 0, 1],
        "op": [0] * 5,
        "category": [Category.ACTIVATION, *[Category.TEMPORARY] * 3, Category.WORKSPACE],
    }
    return Trace.build(columns, ops=["aten::cudnn_convolution"])


def test_leaves_the_workspaces_of_convolutions_out() -> None:
    assert without_workspaces(searching(workspace_mib=200)) == 100 * MIB


def test_needs_a_convolution_with_a_workspace() -> None:
    none = Trace.build({"action": [Action.ALLOC], "size_bytes": [MIB], "block": [0]}, ops=["aten::mm"])
    assert without_workspaces(none) is None


def test_settled_peak_excludes_searches_of_first_step() -> None:
    columns = {
        "action": [Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_ALLOC],
        "size_bytes": [100, 100, 40],
        "block": [-1, -1, -1],
        "step": [0, 0, 1],
    }
    trace = Trace.build(columns)
    assert (int(trace.reserved_bytes().max()), settled_reserved(trace)) == (100, 40)
    assert settled_reserved(Trace.build({**columns, "step": [0, 0, 0]})) == 100
