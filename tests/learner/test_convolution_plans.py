"""What convolutions would take under other plans, on a trace small enough to work out by hand."""

from __future__ import annotations

import pytest

from vramcast.learner.convolution_plans import KINDS, channels, convolutions, plan_features
from vramcast.simulator.simulation import simulate
from vramcast.tracer.trace import Action, Category, Phase, Trace

MIB = 1 << 20
IN, OUT, WEIGHT = 40 * MIB, 80 * MIB, 24 * MIB
ALLOC, GONE = Action.ALLOC, (Action.FREE_REQUESTED, Action.FREE_COMPLETED)


def trace(forward: int, data: int, weight: int, *, first: bool = False) -> Trace:
    """One convolution forward and backward with workspaces of these sizes; `first`: nobody wants its data's gradient."""
    rows: list[tuple[int, int, int, Category, Phase, int]] = []  # action, size, block, category, phase, operator

    def take(size: int, category: Category, phase: Phase) -> int:
        rows.append((ALLOC, size, len(rows), category, phase, int(phase == Phase.BACKWARD)))
        return len(rows) - 1

    def workspace(size: int, phase: Phase) -> None:
        if size:
            block = take(size, Category.WORKSPACE, phase)
            rows.extend((action, size, block, Category.WORKSPACE, phase, 0) for action in GONE)

    take(OUT, Category.ACTIVATION, Phase.FORWARD)
    workspace(forward, Phase.FORWARD)
    if not first:
        take(IN, Category.TEMPORARY, Phase.BACKWARD)
        workspace(data, Phase.BACKWARD)
    take(WEIGHT, Category.GRADIENT, Phase.BACKWARD)
    workspace(weight, Phase.BACKWARD)
    columns = ("action", "size_bytes", "block", "category", "phase", "op")
    return Trace.build(
        {
            **{name: [int(row[place]) for row in rows] for place, name in enumerate(columns)},
            "module": [0] * len(rows),
            "step": [1] * len(rows),
        },
        ops=("aten::cudnn_convolution", "aten::convolution_backward"),
        modules=("0",),
    )


def test_each_kind_is_found_with_its_workspace_and_operands() -> None:
    found = convolutions(trace(8 * MIB, 0, 2 * MIB))
    assert [(one.kind, one.workspace >= 0, one.operands) for one in found] == [
        ("forward", True, IN + OUT + WEIGHT),
        ("data", False, IN + OUT + WEIGHT),
        ("weight", True, IN + OUT + WEIGHT),
    ]


def test_the_first_convolution_has_no_gradient_of_its_data() -> None:
    assert [one.kind for one in convolutions(trace(0, 0, 0, first=True))] == ["forward", "weight"]


@pytest.mark.parametrize("size", [0, 8 * MIB])
def test_bare_plans_take_less_and_copies_more(size: int) -> None:
    job = trace(size, size, size)
    reserved = simulate(job).reserved
    found = plan_features(job, reserved)
    bare = {found["forward_bare_share"], found["data_bare_share"], found["weight_bare_share"]}
    assert max(bare) <= min(found["forward_copies_share"], found["data_copies_share"], found["weight_copies_share"])
    # The tensors and the largest workspace must fit; a tensor may stand in what one workspace left, and the next needs its own.
    largest = max(size, IN + OUT + WEIGHT)
    assert IN + OUT + WEIGHT + largest <= found["copies_share"] * reserved <= OUT + WEIGHT + 2 * largest + 4 * MIB


@pytest.mark.parametrize(
    ("into", "out", "kernel", "stride", "expected"),
    [(64, 64, 9, 1, 64.0), (64, 256, 1, 1, 128.0), (3, 48, 49, 2, 12.0), (32, 64, 9, 2, 2**5.5), (96, 96, 25, 1, 96.0)],
)
def test_the_width_of_a_convolution_shows_in_its_sizes(into: int, out: int, kernel: int, stride: int, expected: float) -> None:
    side = 28
    data, output, weight = 8 * into * (stride * side) ** 2, 8 * out * side**2, into * out * kernel
    for element_bytes in (2, 4):
        sizes = (size * element_bytes for size in (data, output, weight))
        assert channels(*sizes, element_bytes) == pytest.approx(expected)
    assert channels(0, output, weight, 4) == 0.0
    assert channels(data, output + 4, weight, 4) == 0.0


def test_plans_of_one_width_change_nothing_else() -> None:
    """IN, OUT and WEIGHT are no sizes of a whole number of channels: all count as narrow."""
    job = trace(8 * MIB, 0, 2 * MIB)
    found = plan_features(job, simulate(job).reserved)
    assert found["forward_0_copies_share"] == found["forward_copies_share"]
    assert {found[f"{kind}_{width}_{how}_share"] for kind in KINDS for width in (1, 2, 3) for how in ("bare", "copies")} == {
        1.0
    }


def test_without_convolutions_nothing_differs() -> None:
    empty = Trace.build({"action": [], "size_bytes": [], "block": []})
    assert set(plan_features(empty, 1).values()) == {1.0}
