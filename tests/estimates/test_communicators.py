"""NCCL's communicators: their counted calls, and their assumed memory."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from vramcast.core.errors import TraceFileError
from vramcast.core.units import MIB
from vramcast.estimates import communicators
from vramcast.estimates.communicators import context_of_process, sizes_of, strangers_on
from vramcast.hardware.cards import DEVICES
from vramcast.hardware.context import context_bytes
from vramcast.tracer.format.ledger import CallHandling, Entry
from vramcast.tracer.format.nccl_calls import Calls, calls_in, sized
from vramcast.tracer.format.rank_facts import processes_of
from vramcast.tracer.format.trace import PROCESSES, RANKS, Trace

H100, A100 = DEVICES["h100"], DEVICES["a100-40gb"]
USED = {"all_reduce": 3}


def entry(name: str, hits: int = 1) -> Entry:
    """Return the report of the null NCCL."""
    return Entry(CallHandling.COMMUNICATOR, name, hits)


WHOLE_AND_PARTS = [
    entry("1/8/77/made"), entry("1/8/77/all_gather", 5), entry("0/8/-1/made"), entry("0/8/-1/broadcast", 2),
    entry("0/8/-1/all_reduce", 9), entry("2/8/5/made"), Entry(CallHandling.NOOP, "ncclAllReduce", 9),
]  # fmt: skip


def trace(ledger: list[Entry], **header: object) -> Trace:
    """Return an empty trace."""
    return Trace.build({"action": [], "size_bytes": [], "block": [], "address": []}, header=dict(header), ledger=ledger)


def test_counts_calls_by_communicator_and_kind() -> None:
    assert calls_in(WHOLE_AND_PARTS) == (
        Calls(8, {"all_reduce": 9, "broadcast": 2}), Calls(8, {"all_gather": 5}), Calls(8, {}),
    )  # fmt: skip
    assert list(calls_in(WHOLE_AND_PARTS)[0].by_kind) == ["all_reduce", "broadcast"]


def test_subgroup_has_size_of_pytorch() -> None:
    found = calls_in(sized(WHOLE_AND_PARTS, {77: 4}))
    assert [one.ranks for one in found] == [8, 4, 8]  # the size of the last one is only known to be its parent's


def test_ignores_damaged_ledger() -> None:
    assert calls_in([entry("x/8/1/made"), entry("")]) == (Calls(1, {}),)


def test_unused_communicator_takes_nothing() -> None:
    idle, first = sizes_of([Calls(8, {}), Calls(8, USED)], H100, "2.11.0")
    assert (idle.bytes_assumed, idle.high_bytes) == (0, 0)
    assert first.bytes_assumed == 896 * MIB


@pytest.mark.parametrize(
    ("card", "torch", "ranks", "mib"),
    [
        (H100, "2.4.1+cu124", 8, 3758), (H100, "2.6.0", 8, 2832), (H100, "2.7.0", 2, 896), (H100, None, 8, 896),
        (A100, "2.4.1", 8, 130), (A100, "2.11.0", 2, 130), (A100, "2.11.0", 1, 450), (H100, "2.4.0", 1, 450),
    ],
)  # fmt: skip
def test_first_communicator_depends_on_card_and_ranks(card: object, torch: str | None, ranks: int, mib: int) -> None:
    (found,) = sizes_of([Calls(ranks, USED)], card, torch)  # type: ignore[arg-type]
    assert found.bytes_assumed == mib * MIB
    assert found.low_bytes <= found.bytes_assumed <= found.high_bytes


def test_further_communicators_widen_the_bound() -> None:
    plain, peers = (sizes_of([Calls(8, calls)], H100, None)[0] for calls in (USED, {"all_to_all": 1}))
    assert peers.bytes_assumed == plain.bytes_assumed
    assert peers.high_bytes - plain.high_bytes == 7 * 447 * MIB
    _, pair, more, alone = sizes_of([Calls(n, USED) for n in (8, 2, 64, 1)], H100, None)
    assert [one.bytes_assumed for one in (pair, more, alone)] == [544 * MIB, 688 * MIB, 0]
    assert [one.low_bytes for one in (pair, more, alone)] == [0, 0, 0]


def test_context_includes_nccl_and_other_ranks() -> None:
    libraries = {"cublas", "nccl"}
    bare = context_bytes("h100", 12, {"cublas"})
    with_nccl = context_of_process(H100, 12, "2.11.0", libraries, trace(WHOLE_AND_PARTS[2:5]), 7)
    assert with_nccl.bytes == bare.bytes + 896 * MIB + 7
    assert with_nccl.assumed
    assert with_nccl.added == (796 * MIB, 896 * MIB, 1198 * MIB)
    assert "NCCL for 1 communicator," in with_nccl.provenance
    not_seen = context_of_process(H100, 12, "2.11.0", libraries, trace([]))
    assert not_seen == context_bytes("h100", 12, libraries, torch="2.11.0")
    crowded = context_of_process(H100, 12, "2.11.0", libraries, trace(WHOLE_AND_PARTS[2:5], **{RANKS: {"strangers": 7}}), 7)
    stray, after = (context_bytes("h100", 12, (), kernels=kernels) for kernels in (False, True))
    assert crowded.bytes - with_nccl.bytes == 7 * stray.bytes == 7 * 520 * MIB
    assert crowded.high_bytes - with_nccl.high_bytes == 7 * after.high_bytes


@pytest.mark.parametrize("damaged", [[], {}, {"strangers": "7"}, {"strangers": -1}, {"strangers": 10**9}])
def test_ignores_damaged_strangers(damaged: object) -> None:
    assert strangers_on(trace([], **{RANKS: damaged})) == 0


def test_every_size_has_a_provenance_mark() -> None:
    lines = Path(communicators.__file__).read_text(encoding="utf-8").splitlines()
    numbered = {
        node.lineno for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Interval"
        and all(isinstance(one, ast.Constant) for one in node.args) and "Interval(0, 0, 0)" not in lines[node.lineno - 1]
    }  # fmt: skip
    assert len(numbered) >= 6
    assert all(re.search(r"# (spec|measured|arbitrary)", lines[number - 1]) for number in numbered)


def test_counts_other_processes_with_contexts() -> None:
    alone = context_of_process(H100, 12, "2.11.0", ["cublas"], trace([]))
    rows = [["train.py", 1 << 30, True], ["eval.py", 2 << 30, True], ["worker", 0, True], ["before", 9 << 30, False]]
    crowded = context_of_process(H100, 12, "2.11.0", ["cublas"], trace([], **{PROCESSES: rows}))
    assert crowded.bytes == 3 * alone.bytes + (2 << 30)
    assert crowded.high_bytes > 3 * alone.bytes + (2 << 30)
    assert "2 other processes of the job on this card" in crowded.provenance
    assert context_of_process(H100, 12, "2.11.0", ["cublas"], trace([], **{PROCESSES: rows[:1]})) == alone


@pytest.mark.parametrize("damaged", [{"a": 1}, [["x"]], [["x", "y", True]], 7])
def test_rejects_damaged_processes(damaged: object) -> None:
    with pytest.raises(TraceFileError, match="processes are damaged"):
        processes_of(trace([], **{PROCESSES: damaged}))
