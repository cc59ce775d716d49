"""What a process takes besides PyTorch's segments: the published numbers, and the rule for what nobody measured."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from pathlib import Path

import pytest

from vramcast import context
from vramcast.context import LIBRARIES, Context, context_bytes
from vramcast.devices import DEVICES
from vramcast.errors import UsageError
from vramcast.units import GIB, MIB

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
def test_the_published_constants_are_returned_as_measured(key: str, cuda_major: int, libraries: set[str], mib: int) -> None:
    found = context_bytes(key, cuda_major, libraries)
    assert found.bytes == mib * MIB
    assert not found.assumed
    assert "measured by others" in found.provenance


@each_card
@each_cuda
def test_the_point_lies_inside_its_interval_and_fits_the_card(key: str, cuda_major: int) -> None:
    for libraries in SETS:
        low, point, high = numbers(context_bytes(key, cuda_major, libraries))
        assert 0 < low <= point <= high < 6 * GIB
        assert type(point) is type(low) is type(high) is int


@each_card
@each_cuda
def test_a_library_adds_and_never_subtracts(key: str, cuda_major: int) -> None:
    for libraries in SETS:
        for more in set(LIBRARIES) - libraries:
            less_numbers = numbers(context_bytes(key, cuda_major, libraries))
            more_numbers = numbers(context_bytes(key, cuda_major, libraries | {more}))
            assert all(a <= b for a, b in zip(less_numbers, more_numbers, strict=True)), (libraries, more)
            assert less_numbers[1] < more_numbers[1]


@each_card
def test_loading_kernels_lazily_takes_less_than_loading_them_all(key: str) -> None:
    for libraries in SETS:
        assert context_bytes(key, 12, libraries).bytes < context_bytes(key, 11, libraries).bytes


def test_each_row_is_returned_for_its_cards_and_libraries_and_only_there_not_assumed() -> None:
    for rows, cuda_major in ((context._EAGER, 11), (context._LAZY, 12)):
        measured = {(key, row.libraries): row for row in rows for key in row.keys}
        for key, libraries in itertools.product(DEVICES, SETS):
            found = context_bytes(key, cuda_major, libraries)
            row = measured.get((key, libraries))
            assert found.assumed == (row is None)
            if row is not None:
                size = row.size
                assert numbers(found) == (size.low_mib * MIB, size.mib * MIB, size.high_mib * MIB)


def test_what_is_assumed_is_wider_than_what_it_was_derived_from() -> None:
    def width(found: Context) -> int:
        return found.high_bytes - found.low_bytes

    measured = context_bytes("h100", 12, {"cublas", "cudnn"})
    for other in (
        context_bytes("h100", 12, {"cublas"}),
        context_bytes("h100", 12, {"cublas", "cudnn", "nccl"}),
        context_bytes("h100", 13, {"cublas", "cudnn"}),
    ):
        assert other.assumed
        assert width(other) > width(measured)
        assert "assumed" in other.provenance


@each_card
def test_a_cuda_without_measurements_widens_both_ends_and_keeps_the_point(key: str) -> None:
    for libraries in SETS:
        measured, newer = context_bytes(key, 12, libraries), context_bytes(key, 13, libraries)
        assert newer.assumed
        assert newer.bytes == measured.bytes
        assert newer.low_bytes < measured.low_bytes
        assert newer.high_bytes > measured.high_bytes


def test_a_card_without_a_row_gets_the_other_cards_share_of_a_thread() -> None:
    # RTX 4060: 24 SMs * 1536 threads, less than the RTX 3060 (28 * 1536) and much less than the RTX 4090 (128 * 1536).
    assert not any("rtx4060" in row.keys for row in context._LAZY)
    found = context_bytes("rtx4060", 12, {"cublas", "cudnn"})
    assert found.assumed
    assert found.bytes < context_bytes("rtx3060", 12, {"cublas", "cudnn"}).bytes
    assert 50 * MIB < found.bytes < 200 * MIB
    assert "each resident thread" in found.provenance


@pytest.mark.parametrize("row", context._LAZY, ids=lambda row: row.keys[0])
def test_the_rule_for_missing_cards_would_have_covered_each_measured_card(
    row: context._Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Leave one card out: the rule made from the others must hold its measured point.
    monkeypatch.setattr(context, "_LAZY", tuple(other for other in context._LAZY if other is not row))
    found = context_bytes(row.keys[0], 12, row.libraries)
    assert found.assumed
    assert found.low_bytes <= row.size.mib * MIB <= found.high_bytes


def test_a_card_may_be_given_itself_with_another_memory() -> None:
    card = DEVICES["a100-40gb"].with_memory(20_000_000_000)
    assert context_bytes(card, 12, ["cublas"]) == context_bytes("a100", 12, {"cublas"})


def test_wrong_arguments_name_what_is_accepted() -> None:
    with pytest.raises(UsageError, match=r"'cufft'.*cublas, cudnn, nccl"):
        context_bytes("t4", 12, {"cublas", "cufft"})
    with pytest.raises(UsageError, match="CUDA 0 does not exist"):
        context_bytes("t4", 0, {"cublas"})
    with pytest.raises(UsageError, match="Did you mean"):
        context_bytes("rtx4091", 12, {"cublas"})


def test_every_size_of_the_tables_says_its_provenance() -> None:
    source = Path(context.__file__).read_text(encoding="utf-8")
    marked = {
        # A mark which has its line for itself speaks for the next one.
        t.start[0] + (t.line.strip() == t.string)
        for t in tokenize.generate_tokens(io.StringIO(source).readline)
        if t.type == tokenize.COMMENT and re.match(r"#\s*(spec|measured|arbitrary)\b", t.string)
    }
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_Interval":
            if all(isinstance(argument, ast.Constant) for argument in node.args):
                lines.add(node.lineno)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and type(node.value.value) in (int, float):
            lines.add(node.lineno)
    assert len(lines) == len(context._EAGER) + len(context._LAZY) + 1 + 5 + 3
    assert lines - marked == set()
