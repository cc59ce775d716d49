"""The upper bound: monotone, never below the point estimate, wider for what is unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.bound import ARCHITECTURES, RESIDUALS, Residuals, family, process_quantile
from vramcast.context import context_bytes

CONTEXT = context_bytes("a100-40gb", 13, ("cublas", "cudnn"))
levels = st.floats(0.001, 0.999)


@pytest.mark.parametrize("name", sorted(RESIDUALS))
def test_the_table_ascends(name: str) -> None:
    table = RESIDUALS[name]
    assert list(table.levels) == sorted(set(table.levels))
    assert list(table.values) == sorted(table.values)
    assert len(table.levels) == len(table.values)


def test_between_two_levels_it_is_linear() -> None:
    table = Residuals(3, (0.5, 1.0), (0.0, 0.2))
    assert table.at(0.75) == pytest.approx(0.1)
    assert table.at(0.1) == 0.0
    assert table.at(1.0) == 0.2


@given(levels, levels, st.sampled_from(sorted(RESIDUALS)), st.integers(0, 2**40), st.integers(0, 5))
def test_a_higher_level_never_gives_fewer_bytes(a: float, b: float, name: str, reserved: int, n_unknown: int) -> None:
    low, high = sorted((a, b))
    assert process_quantile(low, reserved, CONTEXT, name, n_unknown) <= process_quantile(
        high, reserved, CONTEXT, name, n_unknown
    )


@given(st.sampled_from(sorted(RESIDUALS)), st.integers(0, 2**40))
def test_the_median_is_the_point_estimate(name: str, reserved: int) -> None:
    assert process_quantile(0.5, reserved, CONTEXT, name, 0) == reserved + CONTEXT.bytes


@given(levels.filter(lambda level: level > 0.5), st.integers(10**6, 2**40))
def test_an_unknown_call_widens_the_bound(level: float, reserved: int) -> None:
    assert process_quantile(level, reserved, CONTEXT, "matmul", 1) >= process_quantile(level, reserved, CONTEXT, "matmul", 0)
    assert process_quantile(0.99, 10**9, CONTEXT, "matmul", 1) > process_quantile(0.99, 10**9, CONTEXT, "matmul", 0)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 99.0, float("nan")])
def test_a_level_outside_of_zero_and_one_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        process_quantile(level, 1, CONTEXT, "matmul", 0)


def test_the_family_is_told_by_cudnn_and_the_architecture() -> None:
    with_cudnn = frozenset({"cublas", "cudnn"})
    assert family(with_cudnn, (8, 0)) == "convolution on sm_80"
    assert family(with_cudnn, (8, 9)) == family(with_cudnn, (8, 6)) == "convolution on sm_86 and sm_89"
    assert family(with_cudnn, (9, 0)) == "convolution"  # none of the public runs has such a card
    assert family(frozenset({"cublas"}), (8, 0)) == family(frozenset(), (9, 0)) == "matmul"


def test_an_architecture_without_runs_has_the_widest_bound_of_all() -> None:
    for name in ARCHITECTURES:
        assert all(a <= b for a, b in zip(RESIDUALS[name].values, RESIDUALS["convolution"].values, strict=True))
