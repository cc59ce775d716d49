"""The upper bound: monotone, never below the point estimate, wider for unknown calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.estimates.bounds.public import METHOD, RESIDUALS, PublicBound, Residuals, residual_group
from vramcast.hardware.cards import device
from vramcast.hardware.context import context_bytes
from vramcast.hardware.device import Device

CONTEXT = context_bytes("a100-40gb", 13, ("cublas", "cudnn"))
levels = st.floats(0.001, 0.999)
libraries = st.sampled_from([frozenset[str](), frozenset({"cublas", "cudnn"})])
cards = st.sampled_from([device(name) for name in ("a100-40gb", "rtx3060", "h200")])
MATMUL, A100 = frozenset({"cublas"}), device("a100-40gb")


@pytest.mark.parametrize("name", sorted(RESIDUALS))
def test_residuals_ascend(name: str) -> None:
    table = RESIDUALS[name]
    assert list(table.levels) == sorted(set(table.levels))
    assert list(table.values) == sorted(table.values)
    assert len(table.levels) == len(table.values)


def test_interpolates_between_levels() -> None:
    table = Residuals(3, (0.5, 1.0), (0.0, 0.2))
    assert table.at(0.75) == pytest.approx(0.1)
    assert table.at(0.1) == 0.0
    assert table.at(1.0) == 0.2


@given(levels, levels, libraries, cards, st.integers(0, 2**40), st.integers(0, 5))
def test_quantile_grows_with_level(
    a: float, b: float, libraries: frozenset[str], card: Device, reserved: int, n_unknown: int
) -> None:
    low, high = sorted((a, b))
    bound = PublicBound(reserved, libraries, ("call",) * n_unknown)
    assert bound.quantile(low, card, CONTEXT) <= bound.quantile(high, card, CONTEXT)


@given(libraries, cards, st.integers(0, 2**40))
def test_median_is_point_estimate(libraries: frozenset[str], card: Device, reserved: int) -> None:
    assert PublicBound(reserved, libraries).quantile(0.5, card, CONTEXT) == reserved + CONTEXT.bytes


@given(levels.filter(lambda level: level > 0.5), st.integers(10**6, 2**40))
def test_unknown_call_widens_bound(level: float, reserved: int) -> None:
    known, unknown = (PublicBound(reserved, MATMUL, calls).quantile(level, A100, CONTEXT) for calls in ((), ("call",)))
    assert unknown >= known
    known, unknown = (PublicBound(10**9, MATMUL, calls).quantile(0.99, A100, CONTEXT) for calls in ((), ("call",)))
    assert unknown > known


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 99.0, float("nan")])
def test_rejects_level_outside_unit_interval(level: float) -> None:
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        PublicBound(1, MATMUL).quantile(level, A100, CONTEXT)


def test_names_its_method() -> None:
    bound = PublicBound(1, MATMUL)
    assert (bound.artifact, bound.is_out_of_distribution) == (None, None)
    assert bound.method(0.99, A100) == (METHOD, RESIDUALS["matmul"].n)


def test_margin_is_split_into_parts() -> None:
    bound = PublicBound(8 << 30, MATMUL, ("cuFoo",))
    parts = bound.margin(0.99, A100, CONTEXT)
    assert {one.part for one in parts} == {"allocator", "context", "assumed"}
    margin = bound.quantile(0.99, A100, CONTEXT) - bound.quantile(0.5, A100, CONTEXT)
    assert sum(one.size_bytes for one in parts) == pytest.approx(margin, abs=2)
    assert all(0 < one.saves_bytes <= margin for one in parts)
    assert "cuFoo" in next(one.because for one in parts if one.part == "assumed")
    assert "--measure-context" in next(one.remedy for one in parts if one.part == "context")
    assert not bound.margin(0.5, A100, CONTEXT)


def test_cudnn_selects_family() -> None:
    assert residual_group(frozenset({"cublas", "cudnn"})) == "convolution"
    assert residual_group(frozenset({"cublas"})) == residual_group(frozenset()) == "matmul"


def test_bound_is_no_function() -> None:
    with pytest.raises(UsageError, match=r"est.quantile\(0.99\)"):
        PublicBound(1 << 30, MATMUL)(0.99)
