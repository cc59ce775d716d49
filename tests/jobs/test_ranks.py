"""Ranks: their variables, and the choice of traced ranks."""

from __future__ import annotations

import pytest

from vramcast.core.errors import TraceFileError, UsageError
from vramcast.jobs.ranks import ALONE, Rank, World, parse_ranks
from vramcast.tracer.format.rank_facts import RankPeaks, ranks_of, world_size_of
from vramcast.tracer.format.trace import RANKS, Trace


def test_rank_variables_have_own_numbers() -> None:
    told = Rank(13, World(16, 8)).variables({
        "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "", "WORLD_SIZE": "", "LOCAL_WORLD_SIZE": "", "GROUP_WORLD_SIZE": "",
        "MASTER_ADDR": "here",
    })  # fmt: skip
    assert told == {
        "RANK": "13", "LOCAL_RANK": "5", "GROUP_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8",
        "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "here",
    }  # fmt: skip


def test_default_machine_has_eight_cards() -> None:
    assert [(World(size).local_size, World(size).machines) for size in (1, 8, 12, 64, 7)] == [
        (1, 1),
        (8, 1),
        (6, 2),
        (8, 8),
        (7, 1),
    ]


def test_auto_traces_first_and_last_rank() -> None:
    assert World(8).chosen("auto") == (0, 7)
    assert ALONE.chosen("auto") == (0,)
    assert World(8).chosen("auto", [(0, 2), (4, 2), (6, 4), (3, 5)]) == (
        0,
        2,
        4,
        6,
        7,
    )  # ranks that the first one's tensors reach
    assert World(3).chosen("all") == (0, 1, 2)
    assert World(8).chosen(parse_ranks("7,0,7")) == (7, 0)


@pytest.fixture
def tiny() -> Trace:
    """Return an empty trace."""
    return Trace.build({"action": [], "size_bytes": [], "block": [], "address": []}, header={})


@pytest.mark.parametrize("text", ["", "first", "1-3", "-1", "1,", "1.0"])
def test_rejects_invalid_ranks(text: str) -> None:
    with pytest.raises(UsageError, match="--ranks is"):
        parse_ranks(text)


@pytest.mark.parametrize(("size", "per_node"), [(0, 0), (4, 8), (6, 4), (-1, 0), (128, 128)])
def test_rejects_invalid_worlds(size: int, per_node: int) -> None:
    with pytest.raises(UsageError):
        World(size, per_node)


def test_trace_lists_ranks(tiny: Trace) -> None:
    assert (world_size_of(tiny), ranks_of(tiny)) == (1, ())
    tiny.header[RANKS] = {"world_size": 8, "peaks": [[0, 10, 20], [7, 11, 20]]}
    assert world_size_of(tiny) == 8
    assert ranks_of(tiny) == (RankPeaks(0, 10, 20), RankPeaks(7, 11, 20))


@pytest.mark.parametrize("damaged", [[], {}, {"world_size": "8"}, {"world_size": 8}, {"world_size": 8, "peaks": [[1]]}])
def test_rejects_damaged_ranks(tiny: Trace, damaged: object) -> None:
    tiny.header[RANKS] = damaged
    with pytest.raises(TraceFileError, match="ranks are damaged"):
        ranks_of(tiny)
