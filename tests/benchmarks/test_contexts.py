"""Tests of the constants of `vramcast.hardware.context`."""

from __future__ import annotations

import math

import pytest

from benchmarks.accuracy.runner import data_folder
from benchmarks.hardware import contexts
from vramcast.hardware import context
from vramcast.hardware.context import ContextSource

LOGS = data_folder() / "public" / "context_startup.csv"


def row(**changes: object) -> dict[str, str]:
    """Return a row of the logs: a bare context on an A40."""
    fields: dict[str, object] = {
        "gpu": "NVIDIA A40", "torch": "2.6.0+cu124", "driver": "570.1", "ranks": 1, "what": "own process",
        "mode_mib": 260, "mode_count": 3, "total": 4, **changes,
    }  # fmt: skip
    return {name: str(value) for name, value in fields.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"mode_mib": 57654},  # another process's data
        {"mode_count": 1},  # its processes disagree
        {"what": "device used (no process list visible)"},
        {"gpu": "NVIDIA GeForce RTX 2060 ..."},  # truncated
        {"ranks": 8},  # NCCL
        {"torch": ""},
        {"what": contexts._STRANGER},  # in a job of one rank: another job's
        {"what": contexts._STRANGER, "ranks": 8, "mode_mib": 1508},  # with NCCL: another job's
    ],
)
def test_leaves_out_rows_without_context(changes: dict[str, object]) -> None:
    assert contexts.printed([row(**changes)]) == []


@pytest.mark.parametrize(("mib", "level"), [(260, "bare"), (306, "one kernel"), (760, contexts.GROUP)])
def test_derives_level_from_size(mib: int, level: str) -> None:
    (found,) = contexts.printed([row(mode_mib=mib)])
    assert (found.key, found.threads_1024, found.level, found.processes) == ("a40", 126, level, 3)


def test_compares_each_size_with_others() -> None:
    assert list(contexts.of_the_others([100])) == []
    assert list(contexts.of_the_others([100, 110])) == [pytest.approx(100 / 110 - 1), pytest.approx(0.1)]
    assert list(contexts.of_the_others([100, 110], 120)) == [pytest.approx(100 / 115 - 1), pytest.approx(0)]


def test_coverage_leaves_out_the_card() -> None:
    of = [("a", -0.1), ("b", 0.0), ("c", 0.1), ("a", 0.2)]
    assert contexts.coverage(of, 0.99) == 0.75  # a's own 0.2 does not cover it


@pytest.mark.skipif(not LOGS.exists(), reason="the public logs are missing (VRAMCAST_SHARED)")
def test_constants_equal_printed_ones() -> None:
    for (source, kernels), found in contexts.residuals().items():
        said = context._spread(source, kernels=kernels)
        assert len(said) == len(found)
        assert all(0 <= up - value < 0.0011 for up, (_, value) in zip(said, found, strict=True)), (source, kernels)
        assert math.isclose(max(said), said[-1])


@pytest.mark.skipif(not LOGS.exists(), reason="the public logs are missing (VRAMCAST_SHARED)")
def test_bound_covers_left_out_rows() -> None:
    for (source, kernels), found in contexts.residuals().items():
        if kernels:
            assert contexts.coverage(found, 0.9) >= 0.85, source
            assert contexts.coverage(found, 0.99) >= 0.95, source


@pytest.mark.skipif(not LOGS.exists(), reason="the public logs are missing (VRAMCAST_SHARED)")
def test_rule_beats_former_one_on_unseen_cards() -> None:
    for bare in (True, False):
        rows = [one for one in contexts.LAZY if (not one.libraries) == bare]
        new, old = (sorted(abs(one.size.mib / said(one) - 1) for one in rows) for said in (contexts.without, contexts.former))
        assert new[len(new) // 2] < old[len(old) // 2] / 2
        assert new[-1] < old[-1]


def test_class_without_rows_uses_wider_class() -> None:
    assert context._spread(ContextSource.SITE, kernels=True) == context._spread(ContextSource.OTHER_STACK, kernels=True)
    assert context._spread(ContextSource.SITE, kernels=False) == context._spread(ContextSource.MEASURED, kernels=False)
