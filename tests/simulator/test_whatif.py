"""Other settings and other cards for one trace, and the smallest card that the job runs on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from vramcast.core.errors import UsageError
from vramcast.simulator.card import Card
from vramcast.simulator.engine import play
from vramcast.simulator.requests import RequestKind, Requests
from vramcast.simulator.rules import MIB
from vramcast.simulator.settings import Settings
from vramcast.simulator.trace_edits import with_context
from vramcast.simulator.what_if import case_table, min_feasible, what_if
from vramcast.tracer.format.trace import Action, Category, Trace

from .sequences import decode, requests_of
from .sequences import settings as any_settings


def trace_of(
    *requests: tuple[str, int], ops: tuple[str, ...] = ("aten::mm",), modules: tuple[str, ...] = (), **columns: Any
) -> Trace:
    """Return a trace of ("+", bytes) and ("-", number of the block)."""
    action, size_bytes, block = [], [], []
    starts: list[int] = []
    for what, number in requests:
        if what == "+":
            starts.append(len(action))
            action.append(Action.ALLOC)
            size_bytes.append(number)
            block.append(len(block))
        else:
            action += [Action.FREE_REQUESTED, Action.FREE_COMPLETED]
            size_bytes += [size_bytes[starts[number]]] * 2
            block += [starts[number]] * 2
    return Trace.build({"action": action, "size_bytes": size_bytes, "block": block, **columns}, ops=ops, modules=modules)


# 60 MiB, freed, then 70 and 10: an unlimited card reserves 130 MiB; 80 are enough if the cache releases the 60.
PHASES = trace_of(("+", 60 * MIB), ("-", 0), ("+", 70 * MIB), ("+", 10 * MIB))


# ------------------------------------------------------------------------------------------------ the smallest card
def test_smallest_card_is_exact() -> None:
    assert min_feasible(PHASES) == 80 * MIB
    assert play(Requests.of(PHASES), Settings(), Card(80 * MIB)).stopped_at is None
    assert play(Requests.of(PHASES), Settings(), Card(80 * MIB - 1)).stopped_at is not None


def test_outside_memory_counts() -> None:
    assert min_feasible(with_context(PHASES, [(0, 7 * MIB + 1), (3, 5)])) == 87 * MIB + 6


def test_late_context_needs_cache_release() -> None:
    # The allocator keeps the 60 MiB: a library loaded then must fit in addition to them.
    late = with_context(trace_of(("+", 60 * MIB), ("-", 0)), [(3, 10 * MIB)])
    assert min_feasible(late) == 70 * MIB


def test_memory_fraction_needs_larger_card() -> None:
    found = min_feasible(PHASES, Settings(memory_fraction=0.5))
    assert found is not None
    assert abs(found - 160 * MIB) <= 2


def test_convolution_workspace_is_optional() -> None:
    requests = (("+", 40 * MIB), ("+", 60 * MIB), ("-", 1), ("+", 20 * MIB))
    category = [Category.ACTIVATION, Category.WORKSPACE, Category.UNKNOWN, Category.UNKNOWN, Category.ACTIVATION]
    named: dict[str, Any] = {"op": [0] * 5, "category": category}
    assert min_feasible(trace_of(*requests, ops=("aten::cudnn_convolution",), **named)) == 60 * MIB
    assert min_feasible(trace_of(*requests, ops=("aten::mm",), **named)) == 100 * MIB


def test_no_card_fits_everything() -> None:
    assert min_feasible(trace_of(("+", 1 << 45))) is None


def test_job_without_requests_needs_no_card() -> None:
    assert min_feasible(trace_of()) == 0


def test_smallest_card_lies_above_failing_larger_card() -> None:
    # A card below 202 MiB has no room for both first blocks: the freed one is released, and later 102 + 12 + 60 MiB are
    # enough. A card of 202 MiB keeps it, and the 12 MiB come to lie in its middle: the 60 MiB fit on neither side of them,
    # and the segment cannot be released, so 100 + 102 + 60 MiB are needed.
    trace = trace_of(("+", 100 * MIB), ("-", 0), ("+", 102 * MIB), ("+", 40 * MIB), ("+", 12 * MIB), ("-", 2), ("+", 60 * MIB))
    requests = Requests.of(trace)
    sizes_mib = (173, 174, 201, 202, 261, 262)
    runs = [play(requests, Settings(), Card(mib * MIB)).stopped_at is None for mib in sizes_mib]
    assert runs == [False, True, True, False, False, True]
    assert min_feasible(trace) == 262 * MIB


@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(settings=any_settings(), seed=st.integers(0, 2**32 - 1), length=st.integers(1, 100))
def test_job_fails_with_one_byte_less(settings: Settings, seed: int, length: int) -> None:
    requests, _ = requests_of([decode(np.random.default_rng(seed).bytes(3 * length), n_streams=2, pools=False)])
    least = min_feasible(requests, settings)
    assert least is not None
    n_mallocs = int((requests.kind == RequestKind.MALLOC).sum())
    assert play(requests, settings, Card(least), columns=False).stopped_at is None
    if n_mallocs:
        assert play(requests, settings, Card(least - 1), columns=False).stopped_at is not None


# ------------------------------------------------------------------------------------------------ the table
def test_covers_settings_and_cards_in_order() -> None:
    chosen = [Settings(), Settings(expandable_segments=True)]
    cases = what_if(PHASES, chosen, [None, 100 * MIB, 70 * MIB], n_jobs=2)
    assert [(case.settings, case.card_bytes) for case in cases] == [
        (name, card) for name in ("default", "expandable_segments:True") for card in (None, 100 * MIB, 70 * MIB)
    ]
    first = cases[0]
    assert (first.allocated, first.reserved, first.fragmentation, first.retries) == (80 * MIB, 130 * MIB, 50 * MIB, 0)
    assert [case.min_feasible for case in cases] == [80 * MIB] * 6
    assert [case.out_of_memory is None for case in cases] == [True, True, False] * 2
    assert [case.retries for case in cases[:2]] == [0, 1]


def test_reports_where_memory_runs_out() -> None:
    named: dict[str, Any] = {"op": [-1, 0], "module": [-1, 0], "step": [-1, 2]}
    trace = trace_of(("+", 60 * MIB), ("+", 50 * MIB), modules=("layer1.conv",), **named)
    (case,) = what_if(trace, [Settings()], [100 * MIB])
    end = case.out_of_memory
    assert end is not None
    assert (end.row, end.size_bytes, end.step, end.op, end.module) == (1, 50 * MIB, 3, "aten::mm", "layer1.conv")
    assert case.to_dict()["out_of_memory"]["module"] == "layer1.conv"
    assert case.to_dict()["runs"] is False
    assert "out of memory: step 3" in case_table([case])
    assert "layer1.conv" in case_table([case])


def test_rejects_empty_table() -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        case_table([])


# ------------------------------------------------------------------------------------------------ real jobs
@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_null_gpu_confirms_smallest_card(trace: Callable[..., Any], tiny_models: Path, conf: str) -> None:
    def run(**options: Any) -> Any:
        return trace(
            target=f"{tiny_models}:wide", batch="512x1024", labels="512x1024", optimizer="adam", alloc_conf=conf, **options
        )

    least = min_feasible(run().trace, Settings.parse(conf))
    assert least is not None
    assert run(memory_bytes=least).status == "ok"
    assert run(memory_bytes=least - 2 * MIB).status == "oom"
