"""Memory of a process outside PyTorch's segments: the published numbers, and the rule for unmeasured cards."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.core.units import GIB, MIB
from vramcast.hardware import context
from vramcast.hardware.card_file import ContextRow
from vramcast.hardware.cards import DEVICES
from vramcast.hardware.context import EAGER, LAZY, LIBRARIES, Context, ContextSource, context_bytes, quantile, threads_of

SETS = [frozenset(s) for n in range(len(LIBRARIES) + 1) for s in itertools.combinations(LIBRARIES, n)]
each_card = pytest.mark.parametrize("key", DEVICES)
each_cuda = pytest.mark.parametrize("cuda_major", [10, 11, 12, 13])


def numbers(found: Context) -> tuple[int, int, int]:
    return found.low_bytes, found.bytes, found.high_bytes


@pytest.mark.parametrize(
    ("key", "cuda_major", "libraries", "mib"),
    [
        ("a100-40gb", 11, {"cublas"}, 1429),  # GPUMemNet, 2024
        ("a100-40gb", 11, {"cublas", "cudnn"}, 1679),  # GPUMemNet, 2024
        ("a100-40gb", 12, {"cublas", "cudnn"}, 524),  # CARMA, 2025
        ("v100-16gb", 11, set(), 1343),  # HF docs, CUDA 11.2
    ],
)
def test_returns_published_constants(key: str, cuda_major: int, libraries: set[str], mib: int) -> None:
    found = context_bytes(key, cuda_major, libraries)
    assert found.bytes == mib * MIB
    assert not found.assumed
    assert "measured by others" in found.provenance


@each_card
@each_cuda
def test_point_is_inside_its_interval(key: str, cuda_major: int) -> None:
    for libraries in SETS:
        low, point, high = numbers(context_bytes(key, cuda_major, libraries))
        assert 0 < low <= point <= high < 6 * GIB
        assert type(point) is type(low) is type(high) is int


@each_card
@each_cuda
def test_libraries_never_shrink_context(key: str, cuda_major: int) -> None:
    for libraries in SETS:
        for more in set(LIBRARIES) - libraries:
            less_numbers = numbers(context_bytes(key, cuda_major, libraries))
            more_numbers = numbers(context_bytes(key, cuda_major, libraries | {more}))
            assert all(a <= b for a, b in zip(less_numbers, more_numbers, strict=True)), (libraries, more)
            assert less_numbers[1] < more_numbers[1]


@each_card
def test_lazy_loading_takes_less(key: str) -> None:
    for libraries in SETS:
        assert context_bytes(key, 12, libraries).bytes < context_bytes(key, 11, libraries).bytes


def test_returns_each_row_for_its_cards() -> None:
    for rows, cuda_major in ((EAGER, 11), (LAZY, 12)):
        measured = {(key, row.libraries): row for row in rows for key in row.gpus}
        for key, libraries, kernels in itertools.product(DEVICES, SETS, (False, True)):
            found = context_bytes(key, cuda_major, libraries, kernels=kernels)
            # With CUDA 12 a bare context is one before the first kernel.
            row = measured.get((key, libraries)) if libraries or not kernels or cuda_major == 11 else None
            assert found.assumed == (row is None)
            if row is not None:
                size = row.size
                assert numbers(found) == (size.low_mib * MIB, size.mib * MIB, size.high_mib * MIB)


def test_first_kernel_enlarges_context() -> None:
    for key in DEVICES:
        bare, after, all_ = (
            context_bytes(key, 12, libraries, kernels=kernels)
            for libraries, kernels in (((), False), ((), True), (("cublas", "cudnn"), True))
        )
        assert bare.bytes < after.bytes < all_.bytes
        assert after.bytes - bare.bytes > all_.bytes - after.bytes or key == "t4"
        assert context_bytes(key, 12, ("cublas",), kernels=False) == context_bytes(key, 12, ("cublas",))


def test_source_reflects_measurement() -> None:
    both = ("cublas", "cudnn")
    assert context_bytes("h100", 12, both, torch="2.9.1+cu128").source is ContextSource.MEASURED
    assert context_bytes("h100", 12, both, torch="2.4.1").source is ContextSource.OTHER_STACK
    assert context_bytes("h100", 12, both).source is ContextSource.OTHER_STACK
    assert (
        context_bytes("h200", 12, both, torch="2.10.0").source is ContextSource.INTERPOLATED
    )  # only its bare context was measured
    assert context_bytes("h200", 12, (), torch="2.10.0", kernels=False).source is ContextSource.MEASURED
    assert context_bytes("rtx4080", 12, (), kernels=False).source is ContextSource.INTERPOLATED
    assert context_bytes("a100", 11, both).source is ContextSource.OTHER_STACK


def test_derived_context_is_wider() -> None:
    def width(found: Context) -> int:
        return found.high_bytes - found.low_bytes

    measured = context_bytes("h100", 12, {"cublas", "cudnn"})
    for other in (
        context_bytes("h100", 12, {"cublas"}),
        context_bytes("h100", 12, {"cublas", "cudnn", "nccl"}),
        context_bytes("h100", 14, {"cublas", "cudnn"}),
    ):
        assert other.assumed
        assert width(other) > width(measured)
        assert "assumed" in other.provenance


@each_card
def test_unmeasured_cuda_widens_both_ends(key: str) -> None:
    for libraries in SETS:
        measured, newer = context_bytes(key, 13, libraries), context_bytes(key, 14, libraries)
        assert newer.assumed
        assert newer.bytes == measured.bytes
        assert newer.low_bytes < measured.low_bytes
        assert newer.high_bytes > measured.high_bytes
        assert newer.above_bytes(0.99) > measured.above_bytes(0.99)


def test_cuda_13_uses_points_of_cuda_12() -> None:
    both = {"cublas", "cudnn"}
    twelve, thirteen = context_bytes("a100", 12, both), context_bytes("a100", 13, both)
    assert thirteen.bytes == twelve.bytes
    assert (thirteen.low_bytes, twelve.low_bytes) == (round(0.59 * 524 * MIB), 474 * MIB)
    assert thirteen.high_bytes - thirteen.bytes == thirteen.above_bytes(0.99) == twelve.above_bytes(0.99)
    assert (twelve.assumed, thirteen.assumed) == (False, True)
    assert "another CUDA version (assumed)" in thirteen.provenance
    # Logs of this card with this torch name their CUDA: 13, for one.
    assert not context_bytes("rtx3060", 13, (), torch="2.11.0+cu130", kernels=False).assumed


def test_extrapolates_by_threads() -> None:
    # RTX 4060: 24 SMs * 1536 threads, less than the RTX 3060 (28 * 1536) and much less than the RTX 4090 (128 * 1536).
    assert not any("rtx4060" in row.gpus for row in LAZY)
    found = context_bytes("rtx4060", 12, {"cublas", "cudnn"})
    assert found.assumed
    assert found.bytes < context_bytes("rtx3060", 12, {"cublas", "cudnn"}).bytes
    assert 50 * MIB < found.bytes < 200 * MIB
    assert "extrapolated from other cards" in found.provenance


def test_uses_card_with_equal_threads() -> None:
    both = {"cublas", "cudnn"}
    assert context_bytes("h200", 12, both).bytes == context_bytes("h100", 12, both).bytes
    assert context_bytes("h100-nvl", 12, (), kernels=False).bytes == context_bytes("h100", 12, (), kernels=False).bytes


@pytest.mark.parametrize("row", LAZY, ids=lambda row: f"{row.gpus[0]}-{'-'.join(sorted(row.libraries)) or 'bare'}")
def test_rule_covers_measured_cards(row: ContextRow) -> None:
    # Leave out a card and equal ones: the rule fitted to the others must cover its measured point.
    rest = tuple(other for other in LAZY if threads_of(other) != threads_of(row))
    found = context._lazy(DEVICES[row.gpus[0]], row.libraries, None, kernels=bool(row.libraries), rows=rest)
    assert found.source is ContextSource.INTERPOLATED
    assert found.mib.low_mib <= row.size.mib <= found.mib.high_mib


# ------------------------------------------------------------------------------------------------ uncertainty
cards = st.sampled_from(sorted(DEVICES))
sets = st.sampled_from(SETS)
levels = st.floats(0.001, 0.999)


@given(cards, st.sampled_from([11, 12, 13, 14]), sets, st.sampled_from([None, "2.9.1", "2.10.0"]), levels, levels)
def test_margin_grows_with_level(
    key: str, cuda_major: int, libraries: frozenset[str], torch: str | None, a: float, b: float
) -> None:
    found = context_bytes(key, cuda_major, libraries, torch=torch)
    low, high = sorted((a, b))
    assert 0 <= found.above_bytes(low) <= found.above_bytes(high)
    assert found.above_bytes(low) == 0 or low > 0.5
    assert type(found.above_bytes(high)) is int
    parts = found.parts_above(high)
    assert sum(parts.values()) == found.above_bytes(high)
    assert set(parts) == {"context", "libraries"}
    assert parts["libraries"] == 0 or "nccl" in libraries


@given(cards, sets, levels, st.integers(0, 2**32), st.integers(0, 2**32))
def test_ranks_are_a_separate_part(
    key: str, libraries: frozenset[str], level: float, point_bytes: int, more_bytes: int
) -> None:
    plain = context_bytes(key, 12, libraries)
    found = plain.plus(0, point_bytes, point_bytes + more_bytes, what="NCCL").with_outside(123)
    assert found.parts_above(level)["context"] == plain.parts_above(level)["context"]
    more = found.parts_above(level)["libraries"] - plain.parts_above(level)["libraries"]
    assert abs(more - max(level - 0.5, 0) / 0.5 * more_bytes) <= 1
    assert found.own_bytes == plain.own_bytes


@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=50).map(sorted), levels)
def test_quantile_respects_sample_size(ascending: list[float], level: float) -> None:
    found = quantile(ascending, level)
    n = len(ascending)
    if level > n / (n + 1):
        assert found == max(ascending[-1], 0)
    if level > 0.5:
        assert sum(one <= found for one in ascending) >= min(level * (n + 1), n) - 1e-9
    else:
        assert found == 0


def test_exact_row_has_spread_of_its_class() -> None:
    assert all(values == sorted(values) for classes in context._SPREADS.values() for values in classes.values())
    found = context_bytes("a100", 12, {"cublas", "cudnn"})
    assert found.above_bytes(0.999) == round(found.bytes * context._SPREADS["kernels"]["OTHER_STACK"][-1])
    eager = context_bytes("a100", 11, {"cublas", "cudnn"})  # one number: only its range is known
    assert eager.above_bytes(0.51) == eager.high_bytes - eager.bytes


def test_accepts_device_with_other_memory() -> None:
    card = DEVICES["a100-40gb"].with_memory(20_000_000_000)
    assert context_bytes(card, 12, ["cublas"]) == context_bytes("a100", 12, {"cublas"})


def test_errors_name_accepted_values() -> None:
    with pytest.raises(UsageError, match=r"'cufft'.*cublas, cudnn, nccl"):
        context_bytes("t4", 12, {"cublas", "cufft"})
    with pytest.raises(UsageError, match="CUDA 0 does not exist"):
        context_bytes("t4", 0, {"cublas"})
    with pytest.raises(UsageError, match=r"Card .* is not known"):
        context_bytes("rtx4091", 12, {"cublas"})


def test_every_table_size_has_a_provenance_mark() -> None:
    source = Path(str(context.__file__)).read_text(encoding="utf-8")
    marked = {
        # A mark on its own line applies to the next line.
        t.start[0] + (t.line.strip() == t.string)
        for t in tokenize.generate_tokens(io.StringIO(source).readline)
        if t.type == tokenize.COMMENT and re.match(r"#\s*(spec|measured|arbitrary)\b|#.*\bspec:", t.string)
    }
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Interval":
            if all(isinstance(argument, ast.Constant) for argument in node.args):
                lines.add(node.lineno)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and type(node.value.value) in (int, float):
            lines.add(node.lineno)
    assert len(lines) == 1 + 2 + 2 + 2 + 4
    assert lines - marked == set()
    spreads = Path(str(context.__file__)).with_name("context_spreads.toml").read_text(encoding="utf-8")
    before_the_numbers = spreads.partition("[bare]")[0]
    assert re.search(r"^# measured: ", before_the_numbers, re.MULTILINE)  # one mark for all
