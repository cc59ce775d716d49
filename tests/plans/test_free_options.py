"""Options without a plan: expandable segments, and one block freed before the job."""

from __future__ import annotations

from tests.plans.access_traces import MIB, chain
from vramcast.plans.free_options import free_options
from vramcast.simulator.settings import Settings
from vramcast.simulator.simulation import simulate


def test_options_take_what_the_simulator_says() -> None:
    trace, _ = chain([30, 50, 70, 30], 100)
    free = free_options(trace)
    live_bytes, _ = trace.peak_live()
    assert free.expandable_bytes == simulate(trace, Settings(expandable_segments=True)).reserved
    assert live_bytes <= free.least_bytes == min(free.expandable_bytes, free.one_block_bytes)
    assert 0.96 * live_bytes - 1 <= free.first_bytes <= 1.08 * live_bytes


def test_one_block_is_split_among_blocks_of_different_sizes() -> None:
    trace, _ = chain([30 + 2 * n for n in range(8)], 100, n_steps=3)
    free = free_options(trace)
    live_bytes, _ = trace.peak_live()
    assert free.one_block_bytes <= 1.08 * live_bytes + 20 * MIB
